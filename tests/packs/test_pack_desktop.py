"""The offline pack on real desktops, judged by OSWorld's evaluators: doing nothing scores 0, the solution 1."""

import asyncio
from collections.abc import Sequence

import pytest

from flywheel.datasets.needs import judge
from flywheel.jobs.tasks import this_machine
from flywheel.packs.offline.pack import offline_pack
from flywheel.types import Task
from tests.envs.server.episodes.working import needs_desktops
from tests.packs.playing import Played, desktops, play_all

pytestmark = needs_desktops

PACK = offline_pack()
QUICK = ("terminal/write_line", "text_editor/append_line", "file_manager/rename")
SMALL = "640x384"


def one_of_each(tasks: Sequence[Task]) -> list[Task]:
    """The first of every family."""
    return list({task.family: task for task in reversed(tasks)}.values())


def play(tasks: Sequence[Task], count: int, screen: str = "1280x720") -> list[Played]:
    """Every task on real desktops; skips with the reason where one of them cannot run."""
    here = this_machine()
    for task in tasks:
        if refusal := judge(task, here):
            pytest.skip(f"{task.family}: {refusal.reason}")

    async def collect(url: str) -> list[Played]:
        return [played async for played in play_all(url, tasks, at_once=count)]

    with desktops(count, screen) as url:
        return asyncio.run(collect(url))


def check(played: Sequence[Played]) -> None:
    wrong = [each.line() for each in played if not each.right]
    assert not wrong, "\n".join(wrong)


def test_files_of_terminal_editor_and_file_manager() -> None:
    tasks = [task for task in one_of_each(PACK) if task.family in QUICK]
    played = play(tasks, 2)
    assert {each.task.domain for each in played} == {"terminal", "text_editor", "file_manager"}
    check(played)


@pytest.mark.desktop
def test_every_task_of_the_pack() -> None:
    played = play(PACK, 2)
    assert len(played) == len(PACK)
    check(played)


@pytest.mark.desktop
def test_every_family_on_a_small_screen() -> None:
    check(play(one_of_each(PACK), 2, SMALL))
