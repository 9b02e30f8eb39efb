"""Whole episodes on a guest without any server: typed, looked at, judged by a file read back from it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flywheel.actions.sendkey import SendKey
from flywheel.envs.base import ObserveOptions
from flywheel.envs.server.episodes.console import ConsoleEpisode
from flywheel.errors import ConfigError, EvaluatorError, InfrastructureError, SetupError
from flywheel.types import Action, Answer, Click, Code, Done, Key, Move, Size, StepResult, Task, Type, Wait
from tests.envs.server.machines.qemu_guests import boot_sector_options, console_guest, needs_qemu

pytestmark = needs_qemu

_LOOK = ObserveOptions(image="png")


def _task(func: str = "non_empty", path: str = "/home/user/out.txt", **values: Any) -> Task:
    evaluator = {"func": func, "result": {"type": "guest_file", "path": path}, "expected": values.pop("expected", {})}
    return Task("t", "Write it", "console", evaluator=evaluator, **{"platform": "linux", **values})


def _open(guest: Path, folder: Path, **options: Any) -> ConsoleEpisode:
    return ConsoleEpisode("qemu", {"guest": str(guest), "folder": str(folder), "desktop": 0, **options})


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleEpisode]:
    """The console guest, where it was built before; booted once."""
    episode = _open(console_guest(build=False), tmp_path_factory.mktemp("quick"))
    episode.start()
    yield episode
    episode.close()


def _say(episode: ConsoleEpisode, *texts: str) -> StepResult:
    """What a model of the `sendkey` space would answer."""
    screen = episode.capabilities().screen
    for text in texts:
        parsed = SendKey().parse(text, screen)
        assert parsed.action is not None
        result = episode.step(parsed.action, 0.3)
        assert result.error is None
    return result


def _play(episode: ConsoleEpisode, task: Task, *texts: str) -> float:
    episode.reset(task, _LOOK)
    _say(episode, *texts)
    reward = episode.evaluate()
    episode.recycle()
    return reward


def test_a_file_written_by_typing_scores_and_doing_nothing_does_not(quick: ConsoleEpisode) -> None:
    task = _task("exact_match", expected={"text": "hello"})
    assert _play(quick, task, "<action>typeline echo hello > out.txt</action>", "<done/>") == 1.0
    assert _play(quick, task, "<action>wait 0.1</action>", "<done/>") == 0.0  # and the file of before is gone
    assert _play(quick, task, "<action>typeline echo hullo > out.txt</action>", "<done/>") == 0.0


def test_observations_show_the_screen_in_the_codec_asked_for(quick: ConsoleEpisode) -> None:
    screen = quick.capabilities().screen
    for codec in ("png", "jpeg", "webp", "raw"):
        observation = quick.reset(_task(), ObserveOptions(image=codec))
        assert observation.screenshot is not None
        assert observation.screenshot.codec == codec
        assert observation.screenshot.array().shape == (screen.height, screen.width, 3)
    before = quick.observe().screenshot
    after = quick.step(Type("clear; ls -la /\n"), 1.0).observation.screenshot
    assert before is not None
    assert after is not None
    assert before.data != after.data
    quick.recycle()


def test_actions_that_cannot_be_done_are_results_with_a_sentence(quick: ConsoleEpisode) -> None:
    quick.reset(_task(), _LOOK)
    impossible: list[Action] = [Type("naïve"), Code("ls"), Key(("f20",)), Click(100_000, 1), Wait(1e9)]
    for action in impossible:
        result = quick.step(action, 0.0)
        assert not result.executed
        assert not result.done
        assert result.error is not None
        assert result.error.endswith(".")
    for ending in (Done(), Answer("4")):
        assert quick.step(ending, 0.0).done
    quick.recycle()


def test_giving_up_is_right_only_when_the_task_cannot_be_done(quick: ConsoleEpisode) -> None:
    infeasible = Task("i", "Fly", "console", evaluator={"func": "infeasible"}, platform="linux", infeasible=True)
    assert _play(quick, infeasible, "<fail/>") == 1.0
    assert _play(quick, infeasible, "<done/>") == 0.0
    task = _task("exact_match", expected={"text": "hello"})
    assert _play(quick, task, "<action>typeline echo hello > out.txt</action>", "<fail/>") == 0.0


def test_an_episode_is_judged_once_and_ends_with_it(quick: ConsoleEpisode) -> None:
    quick.reset(_task(), _LOOK)
    assert quick.evaluate() == 0.0
    with pytest.raises(EvaluatorError, match="judged"):
        quick.evaluate()
    with pytest.raises(InfrastructureError, match="reset it first"):
        quick.step(Wait(0.0), 0.0)
    quick.recycle()


@pytest.mark.parametrize(
    "task",
    [
        _task(platform="ubuntu"),
        _task("compare_table"),
        _task(config=({"type": "launch", "parameters": {}},)),
        _task(config=({"type": "keys", "parameters": {"verbs": ["press x"]}},)),
        _task(config=({"type": "keys"},)),
        _task(config=({"type": "stick", "parameters": {"files": {"a/b": ""}}},)),
        _task(config=({"type": "sleep", "parameters": {"seconds": "long"}},)),
    ],
)
def test_tasks_for_other_machines_and_malformed_ones_fail_in_set_up(quick: ConsoleEpisode, task: Task) -> None:
    with pytest.raises(SetupError):
        quick.reset(task, _LOOK)
    assert quick.health() is None


def test_set_up_types_and_puts_files_on_a_stick(quick: ConsoleEpisode) -> None:
    task = _task(
        "exact_match",
        expected={"text": "from the host"},
        config=(
            {"type": "stick", "parameters": {"files": {"note.txt": "from the host\n"}}},
            {"type": "sleep", "parameters": {"seconds": 2}},
            {"type": "keys", "parameters": {"verbs": ["sendkey ctrl-alt-f2", "wait 0.5"]}},
            {"type": "keys", "parameters": {"verbs": ["typeline mount $(findfs LABEL=FLYWHEEL) /mnt", "wait 1"]}},
            {"type": "keys", "parameters": {"verbs": ["sendkey ctrl-alt-f1"]}},
        ),
    )
    assert _play(quick, task, "<action>typeline cp /mnt/note.txt out.txt</action>", "<done/>") == 1.0


@pytest.mark.desktop
def test_all_five_checkers_no_op_scores_0_and_the_solution_1(tmp_path: Path) -> None:
    episode = _open(console_guest(build=True), tmp_path)
    episode.start()
    solutions = {
        "exact_match": ({"text": 'a "b" $c'}, "echo 'a \"b\" $c' > out.txt"),
        "date_format": ({"format": "%Y-%m-%d"}, "date +%Y-%m-%d > out.txt"),
        "directory_listing": ({"names": ["bin", "etc", "home"]}, "ls / > out.txt"),
        "non_empty": ({}, "uname > out.txt"),
        "two_steps": ({"first": "step1", "second": "step2"}, "echo step1 > out.txt; echo step2 >> out.txt"),
    }
    for func, (expected, line) in solutions.items():
        task = _task(func, expected=expected)
        assert _play(episode, task, "<done/>") == 0.0, func
        assert _play(episode, task, f"<action>typeline {line}</action>", "<done/>") == 1.0, func
    episode.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.desktop
def test_what_an_agent_does_to_its_guest_is_judged_or_reported_and_gone_after_recycling(tmp_path: Path) -> None:
    episode = _open(console_guest(build=True), tmp_path)
    episode.start()
    task = _task("exact_match", expected={"text": "hello"})
    hostile = {
        "a link instead of the file": ("ln -s /etc/shadow out.txt", 0.0),
        "a pipe instead of the file": ("mkfifo out.txt", 0.0),
        "a huge file": ("dd if=/dev/zero of=out.txt bs=1M count=30", 0.0),
        "busy processors": ("(while :; do :; done) & (while :; do :; done) & echo hello > out.txt", 1.0),
    }
    for name, (line, reward) in hostile.items():
        assert _play(episode, task, f"<action>typeline {line}</action>", "<action>wait 2</action>") == reward, name
    episode.reset(task, _LOOK)
    _say(episode, "<action>sendkey ctrl-alt-f2</action>", "<action>typeline echo o > /proc/sysrq-trigger</action>")
    time.sleep(5)
    late = episode.step(Type("x"), 0.0)
    assert not late.executed
    assert "switched off" in (late.error or "")
    with pytest.raises(EvaluatorError, match="switched off"):  # nothing is known, so this is no reward of 0
        episode.evaluate()
    episode.recycle()
    assert _play(episode, task, "<action>typeline echo hello > out.txt</action>") == 1.0
    episode.close()


def test_only_a_qemu_machine_will_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="qemu"):
        ConsoleEpisode("xvfb", {"folder": str(tmp_path)})


def test_capabilities_say_what_the_machine_is(tmp_path: Path) -> None:
    options = boot_sector_options(tmp_path, pointer=False, apps=["terminal"])
    given = {
        name: getattr(options, name) for name in ("image", "format", "ports", "ready", "ready_text", "pointer", "apps")
    }
    episode = ConsoleEpisode("qemu", {**given, "memory_mb": 32, "folder": str(tmp_path / "s"), "desktop": 0})
    episode.start()
    offered = episode.capabilities()
    assert offered.screen == Size(720, 400)
    assert offered.action_spaces == {"sendkey"}
    assert offered.apps == {"terminal"}
    assert (offered.platform, offered.internet, offered.snapshots, offered.isolation) == ("linux", False, True, "vm")
    episode.reset(_task(), _LOOK)
    assert not episode.step(Move(1, 1), 0.0).executed
    episode.close()
    episode.close()
