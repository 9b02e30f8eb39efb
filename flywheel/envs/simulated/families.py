"""Task families: each fills a draft with what its task needs and says what is wanted.

The level (1-4) raises the number of widgets that are only in the way (2, 5, 8, 11, as far as the screen has room) and,
from level 3, the number or the depth of what is asked. An instruction is a short sentence over a closed vocabulary.
"""

from collections.abc import Callable

from flywheel.envs.simulated.draft import Draft, Goal
from flywheel.envs.simulated.vocabulary import SHORTCUT_LETTERS

Family = Callable[[Draft, int], Goal]

DISTRACTORS = {1: 2, 2: 5, 3: 8, 4: 11}


def _twice(level: int) -> int:
    return 2 if level >= 3 else 1


def _then(parts: list[str]) -> str:
    return " then ".join(parts) + " ."


def click(draft: Draft, level: int) -> Goal:
    """Click Save ."""
    target = draft.caption(draft.add("button"))
    draft.distract(DISTRACTORS[level], "button")
    verb = draft.rng.choice(("Click", "Press")) if level >= 3 else "Click"
    return Goal(f"{verb} {target} .", [["press", target]])


def check(draft: Draft, level: int) -> Goal:
    """Tick Wrap .  From level 3: Tick Wrap then untick Bold ."""
    checks: dict[str, bool] = {}
    words: list[str] = []
    for _ in range(_twice(level)):
        wanted = draft.rng.random() < 0.6
        target = draft.caption(draft.add("check", checked=not wanted))
        checks[target] = wanted
        verb = "tick" if wanted else "untick"
        words.append(f"{verb} {target}" if words else f"{verb.capitalize()} {target}")
    draft.distract(DISTRACTORS[level], "check")
    return Goal(_then(words), checks=checks)


def type_(draft: Draft, level: int) -> Goal:
    """Type blue into Name .  Level 3: two fields; level 4: a field holds other text, which must go."""
    fields, words = {}, []
    for i in range(_twice(level)):
        old = draft.text() if level == 4 and i == 0 else ""
        target, text = draft.caption(draft.add("field", text=old)), draft.text()
        fields[target] = text
        words.append(f"{text} into {target}")
    draft.distract(DISTRACTORS[level], "field")
    return Goal("Type " + _then(words), fields=fields)


def menu(draft: Draft, level: int) -> Goal:
    """Choose Copy from Edit ."""
    events, words = [], []
    for _ in range(_twice(level)):
        index = draft.add("menu")
        item = draft.rng.choice(draft.items(index, 2 if level == 1 else 3))
        events.append(["choose", draft.caption(index), item])
        words.append(f"{item} from {draft.caption(index)}")
    draft.distract(DISTRACTORS[level], "menu")
    return Goal("Choose " + _then(words), events)


def dialog(draft: Draft, level: int) -> Goal:
    """Answer Yes to Close ."""
    events, words = [], []
    for _ in range(_twice(level)):
        button = draft.add("button")
        answer = draft.rng.choice(draft.dialog(button, 3 if level == 4 else 2))
        title = draft.caption(button + 1)
        events += [["press", draft.caption(button)], ["answer", title, answer]]
        words.append(f"{answer} to {draft.caption(button)}")
    draft.distract(DISTRACTORS[level], "button")
    return Goal("Answer " + _then(words), events)


def two_step(draft: Draft, level: int) -> Goal:
    """Click Save then Open .  From level 3 three buttons."""
    targets = [draft.caption(draft.add("button")) for _ in range(1 + _twice(level))]
    draft.distract(DISTRACTORS[level], "button")
    return Goal("Click " + _then(targets), [["press", target] for target in targets])


def scroll(draft: Draft, level: int) -> Goal:
    """Click Copy in Mail .  The row is one screenful down, at level 3 one or two, at level 4 two."""
    pages = {1: 1, 2: 1, 3: draft.rng.choice((1, 2)), 4: 2}[level]
    visible = draft.slots
    title, rows = draft.list_of(visible * (pages + (1 if level < 3 else 3 - pages)))
    target = draft.rng.choice(rows[visible * pages : visible * (pages + 1)])
    draft.distract(DISTRACTORS[level])
    return Goal(f"Click {target} in {title} .", [["select", title, target]])


def drag(draft: Draft, level: int) -> Goal:
    """Drag Mail to Bold ."""
    events, words = [], []
    for _ in range(_twice(level)):
        picked, target = draft.caption(draft.add("icon")), draft.caption(draft.add("bin"))
        events.append(["drop", picked, target])
        words.append(f"{picked} to {target}")
    draft.distract(DISTRACTORS[level], "bin")
    return Goal("Drag " + _then(words), events)


def double_click(draft: Draft, level: int) -> Goal:
    """Double click Mail ."""
    targets = [draft.caption(draft.add("icon")) for _ in range(_twice(level))]
    draft.distract(DISTRACTORS[level], "icon")
    return Goal("Double click " + _then(targets), [["open", target] for target in targets])


def right_click(draft: Draft, level: int) -> Goal:
    """Right click Mail then choose Copy .  From level 3 also: Choose Copy from Mail ., which only the icon's shape
    tells from a menu."""
    index = draft.add("icon")
    title = draft.caption(index)
    item = draft.rng.choice(draft.items(index, 2 if level == 1 else 3))
    draft.distract(DISTRACTORS[level], "icon")
    plain = level < 3 or draft.rng.random() < 0.5
    words = f"Right click {title} then choose {item} ." if plain else f"Choose {item} from {title} ."
    return Goal(words, [["choose", title, item]])


def keyboard(draft: Draft, level: int) -> Goal:
    """Press ctrl s in Name .  From level 2 also enter; from level 3 in two fields."""
    events, words = [], []
    for _ in range(_twice(level)):
        target = draft.caption(draft.add("field"))
        if level >= 2 and draft.rng.random() < 0.3:
            events.append(["enter", target, ""])
            words.append(f"enter in {target}")
        else:
            letter = draft.rng.choice(SHORTCUT_LETTERS)
            events.append(["shortcut", f"ctrl+{letter}", target])
            words.append(f"ctrl {letter} in {target}")
    draft.distract(DISTRACTORS[level], "field")
    return Goal("Press " + _then(words), events)


def form(draft: Draft, level: int) -> Goal:
    """Type blue into Name then tick Wrap then click Save .  One field; with the box from level 2, two fields at 3 and
    4, the box again at 4."""
    fields, checks, words = {}, {}, []
    for _ in range(_twice(level)):
        target, text = draft.caption(draft.add("field")), draft.text()
        fields[target] = text
        words.append(f"{text} into {target}")
    if level in (2, 4):
        box = draft.caption(draft.add("check"))
        checks[box] = True
        words.append(f"tick {box}")
    button = draft.caption(draft.add("button", submits=True))
    words.append(f"click {button}")
    draft.distract(DISTRACTORS[level])
    return Goal("Type " + _then(words), [["submit", button]], fields, checks)


def infeasible(draft: Draft, level: int) -> Goal:
    """What is named is not there. At level 4 its caption is, on a widget of another kind."""
    missing = draft.name()
    if level == 4:
        words = draft.rng.choice((f"Tick {missing} .", f"Type {draft.text()} into {missing} ."))
        draft.add(draft.rng.choice(("button", "icon", "bin")), missing)
    elif level == 3:
        words = draft.rng.choice((f"Choose {draft.name()} from {missing} .", f"Double click {missing} ."))
    elif level == 2:
        words = draft.rng.choice((f"Tick {missing} .", f"Type {draft.text()} into {missing} ."))
    else:
        words = f"Click {missing} ."
    draft.distract(DISTRACTORS[level])
    return Goal(words, missing=missing)


FAMILIES: dict[str, Family] = {
    "click": click,
    "check": check,
    "type": type_,
    "menu": menu,
    "dialog": dialog,
    "two_step": two_step,
    "scroll": scroll,
    "drag": drag,
    "double_click": double_click,
    "right_click": right_click,
    "keyboard": keyboard,
    "form": form,
    "infeasible": infeasible,
}
"""Name -> generator; every family has all four levels."""
