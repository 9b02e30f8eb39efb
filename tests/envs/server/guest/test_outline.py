"""The accessibility tree as a model reads it: no desktop needed."""

from PIL import Image

from flywheel.envs.server.guest.accessibility import marked, outline, seen_nodes
from flywheel.envs.server.guest.marks import draw_marks

SHOWN = 'st:showing="true" st:visible="true"'
XML = f"""
<desktop-frame xmlns:st="https://accessibility.ubuntu.example.org/ns/state"
               xmlns:cp="https://accessibility.ubuntu.example.org/ns/component">
  <application name="editor">
    <frame name="Notes" {SHOWN} st:active="true" cp:screencoord="(0, 0)" cp:size="(400, 300)">
      <menu name="File" {SHOWN} cp:screencoord="(0, 20)" cp:size="(40, 20)">
        <menu-item name="Open" st:visible="true"/>
      </menu>
      <filler name="" {SHOWN} cp:screencoord="(0, 40)" cp:size="(400, 260)">
        <text name="" {SHOWN} st:focused="true" cp:screencoord="(0, 40)" cp:size="(400, 260)">one\ttwo
three</text>
        <push-button name="Far" {SHOWN} cp:screencoord="(900, 40)" cp:size="(40, 20)"/>
        <push-button name="Flat" {SHOWN} cp:screencoord="(0, 40)" cp:size="(40, 0)"/>
      </filler>
    </frame>
  </application>
</desktop-frame>"""
SCREEN = (400, 300)


def test_only_what_is_seen_and_of_use_is_told() -> None:
    assert outline(seen_nodes(XML, SCREEN), 4096).splitlines()[1:] == [
        "frame\tNotes\t\t(0, 0)\t(400, 300)",
        "menu\tFile\t\t(0, 20)\t(40, 20)",
        "text\t\tone two three\t(0, 40)\t(400, 260)\tfocused",
    ]


def test_the_outline_keeps_its_limit_and_says_what_it_cut() -> None:
    nodes = seen_nodes(XML, SCREEN)
    whole = outline(nodes, 4096)
    for limit in range(1, len(whole) + 2):
        assert len(outline(nodes, limit)) <= limit
    assert outline(nodes, len(whole)) == whole
    assert outline(nodes, len(whole) - 1).endswith("[cut: 1 more elements]")
    assert outline(nodes * 100, 300).endswith(" more elements]")


def test_marks_are_numbered_boxes_around_what_can_be_acted_on() -> None:
    image = Image.new("RGB", SCREEN, "white")
    legend = draw_marks(image, list(marked(seen_nodes(XML, SCREEN))))
    assert [(each["mark"], each["tag"], each["name"]) for each in legend] == [(1, "menu", "File"), (2, "text", "")]
    assert image.getpixel((39, 39)) != (255, 255, 255)
    assert image.getpixel((399, 150)) != (255, 255, 255)
    assert image.getpixel((200, 150)) == (255, 255, 255)
