"""The scripted teacher of real desktops: it looks elements up, waits for them, and says when it cannot go on."""

import asyncio
from typing import Any

import pytest

from flywheel.actions.registry import action_space
from flywheel.errors import AgentError
from flywheel.rollout.agents.solutions import PATIENCE, SolutionAgent, find_element, needs_accessibility
from flywheel.types import Action, Click, Done, Key, Observation, Sampling, Screenshot, Size, Task, Wait

SCREEN = Size(640, 400)
SPACE = action_space("computer_use")
SHOT = Screenshot(bytes(SCREEN.width * SCREEN.height * 3), *SCREEN)
HEAD = "tag\tname\ttext\tposition (top-left x&y)\tsize (w&h)\tstate"
PRESS = {"action": {"type": "key", "keys": ["ctrl", "s"]}, "thinking": "save the file", "brief": "press ctrl s"}
SEND = {
    "action": {"type": "click"},
    "find": {"role": "push-button", "name": "Send"},
    "thinking": "push-button Send",
    "brief": "click Send",
}
END = {"action": {"type": "done", "status": "success"}, "thinking": "the task is done", "brief": "finish"}


def tree(*lines: str) -> str:
    return "\n".join([HEAD, *lines])


def say(solution: Any, *trees: str | None) -> list[tuple[Action | None, str]]:
    """What a session answers to one observation after another."""

    async def talk() -> list[tuple[Action | None, str]]:
        task = Task("t", "Do it", "chrome", raw={"solution": solution})
        session = await SolutionAgent(SPACE).open(task, Sampling())
        answers = []
        for seen in trees:
            text = (await session.act(Observation(SHOT, seen))).text
            answers.append((SPACE.parse(text, SCREEN).action, text))
        await session.close()
        return answers

    return asyncio.run(talk())


def test_steps_come_in_order_with_their_words() -> None:
    (first, text), (last, _) = say([PRESS, END], None, None)
    assert (first, last) == (Key(("ctrl", "s")), Done())
    assert "save the file" in text
    assert "Action: press ctrl s" in text


def test_an_element_is_waited_for_and_clicked_in_its_middle() -> None:
    there = tree("static\tSend\t\t(1, 1)\t(9, 9)", "push-button\tSend\t\t(100, 50)\t(40, 20)\tfocused")
    answers = say([SEND, END], None, tree("push-button\tCancel\t\t(1, 1)\t(9, 9)"), there, None)
    assert [action for action, _ in answers] == [Wait(1.0), Wait(1.0), Click(120, 60), Done()]
    assert "Action: wait" in answers[0][1]


def test_what_is_not_on_the_screen_is_not_clicked() -> None:
    off = "push-button\tSend\t\t(600, 390)\t(200, 20)"
    assert find_element(tree(off), SCREEN, "push-button", "Send") is None
    assert find_element(tree(off), Size(1280, 720), "push-button", "Send") == (700, 400)
    both = tree(off, "push-button\tSend\t\t(-10, 10)\t(40, 20)")
    assert find_element(both, SCREEN, "push-button", "Send") == (10, 20)


def test_patience_ends() -> None:
    answers = say([SEND, END], *[None] * PATIENCE)
    assert {action for action, _ in answers} == {Wait(1.0)}
    with pytest.raises(AgentError, match="push-button 'Send' is not in the accessibility tree"):
        say([SEND, END], *[None] * (PATIENCE + 1))


@pytest.mark.parametrize(
    ("solution", "message"),
    [
        (None, "brings no solution"),
        ([], "brings no solution"),
        ([PRESS], "is over, and the episode is not"),
        ([PRESS | {"action": {"type": "fly"}}, END], "cannot be read"),
        ([PRESS | {"action": {"type": "code", "code": "ls", "language": "bash"}}], "cannot say 'press ctrl s'"),
    ],
)
def test_a_solution_that_does_not_serve_is_an_agent_error(solution: Any, message: str) -> None:
    with pytest.raises(AgentError, match=message):
        say(solution, None, None)


def test_which_solutions_need_the_tree() -> None:
    assert needs_accessibility(Task("t", "", "x", raw={"solution": [PRESS, SEND]}))
    assert not needs_accessibility(Task("t", "", "x", raw={"solution": [PRESS]}))
    assert not needs_accessibility(Task("t", "", "x"))
