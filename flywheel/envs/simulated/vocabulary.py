"""Every word that the simulated desktop shows, asks for or lets its oracle say.

The list is closed so that a tokenizer can hold each word as one token (with its leading space). Captions have at most
five letters: at 6 px a letter they fit into a 32 px cell.
"""

NAMES = (
    "Save", "Open", "Copy", "Paste", "Cut", "Undo", "Redo", "Find", "Print", "Close", "New",
    "Send", "Wrap", "Bold", "Name", "Edit", "File", "View", "Sort", "Zoom", "Mail",
)  # fmt: skip
ANSWERS = ("Yes", "No", "Later")
CAPTIONS = NAMES + ANSWERS
"""The 24 captions; `ANSWERS` stand on the buttons of dialogs only."""

TYPED = ("blue", "red", "green", "gray", "pink", "gold", "black", "white")
"""What tasks ask to be typed."""

KINDS = ("button", "check", "field", "menu", "item", "dialog", "list", "row", "icon", "bin")
STATES = ("plain", "focused", "checked", "checked focused", "filled", "filled focused", "filled selected", "open")
"""What a widget can look like besides its kind and caption."""

SHORTCUT_LETTERS = ("s", "c", "v", "z")
KEY_WORDS = ("ctrl", "enter", "escape", "backspace", *SHORTCUT_LETTERS)

INSTRUCTION_WORDS = (
    "Click", "Press", "Tick", "Untick", "Type", "Choose", "Answer", "Drag", "Double", "Right",
    "click", "tick", "choose", "then", "into", "from", "to", "in", ".",
)  # fmt: skip
ORACLE_WORDS = ("type", "press", "scroll", "drag", "double", "right", "untick", "finish", "missing", "stuck", "a")

ALL_WORDS = tuple(dict.fromkeys(CAPTIONS + TYPED + KINDS + KEY_WORDS + INSTRUCTION_WORDS + ORACLE_WORDS))
"""Captions, typed words, kinds, keys, instructions and what the oracle thinks and says; cell numbers are not words."""
