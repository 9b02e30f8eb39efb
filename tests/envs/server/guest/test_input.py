"""Pointer and keyboard, as a window and as applications see them."""

import time
from pathlib import Path

import pytest

from tests.envs.server.guest.desk import Desk, Witness, until

TEXT = 'ß€"\\ <Hello> ~`|{}[]^ äöü ÑΩЖ 中文 😀'


def _told(witness: Witness, *kinds: str, count: int) -> list[dict[str, int]]:
    until(lambda: len(witness.events(*kinds)) >= count)
    time.sleep(0.1)  # nothing may follow
    events = witness.events(*kinds)
    assert len(events) == count, events
    return events


def test_a_click_lands_where_it_was_aimed(desk: Desk, witness: Witness) -> None:
    desk.act("click", x=witness.x + 123, y=witness.y + 45)
    down, up = _told(witness, "press", "release", count=2)
    assert (down["x"], down["y"], down["detail"]) == (witness.x + 123, witness.y + 45, 1)
    assert (up["event"], up["x"], up["y"]) == ("release", down["x"], down["y"])
    assert desk.get("/cursor_position").json() == [witness.x + 123, witness.y + 45]


def test_buttons_counts_and_held_keys(desk: Desk, witness: Witness) -> None:
    at = {"x": witness.x + 10, "y": witness.y + 10}
    desk.act("click", **at, button="right", count=2, keys=["ctrl", "shift"])
    events = _told(witness, "press", count=2)
    assert [(each["detail"], each["state"] & 5) for each in events] == [(3, 5), (3, 5)]
    witness.clear()
    desk.act("click", **at, button="middle")
    assert [(each["detail"], each["state"] & 5) for each in _told(witness, "press", count=1)] == [(2, 0)]


def test_a_drag_is_seen_all_the_way(desk: Desk, witness: Witness) -> None:
    desk.act("drag", x=witness.x + 300, y=witness.y + 200, start=[witness.x + 20, witness.y + 20])
    down, up = _told(witness, "press", "release", count=2)
    assert (down["x"] - witness.x, down["y"] - witness.y) == (20, 20)
    assert (up["x"] - witness.x, up["y"] - witness.y) == (300, 200)
    held = [each for each in witness.events("motion") if each["state"] & 256]
    assert len(held) >= 8


def test_the_wheel_turns_both_ways(desk: Desk, witness: Witness) -> None:
    desk.act("scroll", dy=-3, dx=2, x=witness.x + 50, y=witness.y + 50)
    assert [each["detail"] for each in _told(witness, "press", count=5)] == [7, 7, 5, 5, 5]


def test_keys_stay_down_between_scripts_until_they_are_let_go(desk: Desk, witness: Witness) -> None:
    desk.execute("pyautogui.keyDown('shift')")
    desk.act("click", x=witness.x + 50, y=witness.y + 50)
    assert _told(witness, "press", count=1)[0]["state"] & 1
    desk.execute("pyautogui.keyUp('shift')")
    witness.clear()
    desk.act("click", x=witness.x + 50, y=witness.y + 50)
    assert not _told(witness, "press", count=1)[0]["state"] & 1


def test_a_pyautogui_script_is_performed_in_order(desk: Desk, witness: Witness) -> None:
    x, y = witness.x + 60, witness.y + 70
    answer = desk.execute(f"pyautogui.click({x}, {y}); pyautogui.press('a'); pyautogui.hotkey('ctrl', 's')")
    assert answer == {"status": "success", "output": "", "error": "", "returncode": 0}
    keys = [each["keysym"] for each in _told(witness, "key down", count=3)]
    assert keys == [ord("a"), 0xFFE3, ord("s")]


def test_a_point_outside_the_screen_is_refused_and_nothing_happens(desk: Desk, witness: Witness) -> None:
    desk.act("move", x=5, y=6)
    answer = desk.post("/v1/action", {"type": "click", "x": 1280, "y": 5})
    assert answer.status_code == 422
    assert answer.json()["message"] == "The point (1280, 5) is outside the 1280 x 800 screen."
    assert desk.get("/cursor_position").json() == [5, 6]


def test_text_arrives_exactly_in_a_terminal(desk: Desk, tmp_path: Path) -> None:
    typed = tmp_path / "typed.txt"
    terminal = desk.start("xterm", "-u8", "-T", "typing", "-e", "sh", "-c", f"cat > {typed}")
    until(lambda: desk.get("/v1/window").json()["window"] and "typing" in desk.get("/v1/window").text)
    until(typed.exists)
    desk.act("type", text=TEXT + "\n")
    until(lambda: typed.read_text() == TEXT + "\n")
    desk.act("key", keys=["capslock"])
    desk.act("type", text="Caps Lock changes nothing: é\n")
    desk.act("key", keys=["capslock"])
    desk.act("key", keys=["ctrl", "d"])
    until(lambda: terminal.poll() is not None)
    assert typed.read_text() == TEXT + "\nCaps Lock changes nothing: é\n"


@pytest.mark.desktop
def test_more_strange_characters_than_there_are_keys_arrive_in_an_editor(desk: Desk) -> None:
    note = desk.home / "strange.txt"
    note.write_text("")
    text = TEXT + "\n" + "".join(chr(0x4E00 + index) for index in range(400)) + "\n" + "The quick brown fox. " * 50
    desk.start("mousepad", note)
    until(lambda: any("strange" in title for title in desk.titles()))
    until(lambda: "strange" in desk.get("/v1/window").text)
    time.sleep(1.0)
    desk.act("type", text=text)
    desk.act("key", keys=["ctrl", "s"])
    until(lambda: note.read_text().rstrip("\n") == text)
    desk.post("/setup/close_window", {"window_name": "strange"})
