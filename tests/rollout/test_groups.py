"""Many episodes: named and seeded so that each repeats alone, on desktops that are closed whatever happens."""

import asyncio
from collections.abc import Callable

import pytest

from flywheel.actions.registry import action_space
from flywheel.config import load_config
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.errors import InfrastructureError, StoreFullError
from flywheel.rollout.agents.scripted import ScriptedAgent
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.groups import plan, play
from flywheel.types import Done, Size, Trajectory, Wait
from tests.rollout.faults import FaultyEnv, Parrot, StuckEnv

SCREEN = Size(160, 128)
CONFIG = load_config("embedded")
SPACE = action_space("computer_use")
TASKS = generate_tasks(split="train", count=6, seed=0, screen=SCREEN, levels=(1,))


def planned(partition: str = "iter-01", samples: int = 2, seed: int = 0) -> list[EpisodeSpec]:
    return plan(CONFIG, TASKS, partition=partition, samples=samples, temperature=1.0, max_turns=8, seed=seed)


class Room:
    """Makes desktops and remembers them."""

    def __init__(self, make: Callable[[int], FaultyEnv] | None = None) -> None:
        self.desktops: list[FaultyEnv] = []
        self._make = make or (lambda number: FaultyEnv(SimulatedEnv(SCREEN)))

    def __call__(self) -> FaultyEnv:
        self.desktops.append(self._make(len(self.desktops)))
        return self.desktops[-1]


def run(
    room: Room,
    agent: Parrot | ScriptedAgent,
    specs: list[EpisodeSpec],
    concurrency: int = 4,
    take: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    played: list[Trajectory] = []
    asyncio.run(play(specs, agent, SPACE, room, concurrency=concurrency, on_trajectory=take or played.append))
    return played


def test_a_plan_repeats_and_differs_with_everything_it_depends_on() -> None:
    first = planned()
    assert first == planned()
    ids = {spec.id for spec in first}
    assert len(ids) == 12
    for other in (planned(partition="iter-02"), planned(seed=1)):
        assert not ids & {spec.id for spec in other}
        assert not {spec.sampling.seed for spec in first} & {spec.sampling.seed for spec in other}


def test_the_episodes_of_a_task_are_one_group() -> None:
    specs = planned(samples=3)
    for number, task in enumerate(TASKS):
        group = specs[3 * number : 3 * number + 3]
        assert {spec.task.id for spec in group} == {task.id}
        assert len({spec.group_id for spec in group}) == 1
    assert len({spec.group_id for spec in specs}) == len(TASKS)


def test_a_task_that_comes_twice_is_played_with_two_seeds() -> None:
    specs = plan(CONFIG, [TASKS[0]] * 2, partition="eval", samples=1, temperature=0.0, max_turns=8)
    assert len({spec.id for spec in specs}) == 2
    assert len({spec.group_id for spec in specs}) == 2


def test_all_are_played_and_all_desktops_closed() -> None:
    room = Room()
    played = run(room, ScriptedAgent(SPACE), planned())
    assert sorted(t.id for t in played) == sorted(spec.id for spec in planned())
    assert all(t.success for t in played)
    assert [desktop.closed for desktop in room.desktops] == [1] * 4


def test_there_are_never_more_desktops_than_episodes() -> None:
    room = Room()
    run(room, ScriptedAgent(SPACE), planned()[:2], concurrency=100)
    assert len(room.desktops) == 2


def test_a_desktop_that_was_lost_is_closed_and_replaced() -> None:
    """One broken machine must not fail every episode that is dealt to it."""

    def make(number: int) -> FaultyEnv:
        fault = InfrastructureError("The desktop was lost.") if number == 0 else None
        return FaultyEnv(SimulatedEnv(SCREEN), "step", fault)

    room = Room(make)
    played = run(room, ScriptedAgent(SPACE), planned(), concurrency=1)
    assert [t.failure for t in played] == ["infrastructure", *[None] * 11]
    assert [desktop.closed for desktop in room.desktops] == [1, 1]


def test_a_failure_outside_the_episodes_is_raised_as_it_is_and_closes_everything() -> None:
    """A full disk while publishing must stay one sentence, not become a group of exceptions."""

    def full(trajectory: Trajectory) -> None:
        raise StoreFullError("No space is left.")

    room = Room()
    agent = Parrot(SPACE, [Wait(1.0), Done()])
    with pytest.raises(StoreFullError, match="No space is left"):
        run(room, agent, planned(), take=full)
    assert [desktop.closed for desktop in room.desktops] == [1] * 4
    assert agent.open_sessions == 0


def test_cancelling_closes_sessions_and_desktops() -> None:
    agent = Parrot(SPACE, [Wait(1.0)])
    room = Room(lambda number: StuckEnv(SimulatedEnv(SCREEN)))

    async def cancelled() -> None:
        playing = asyncio.create_task(
            play(planned(), agent, SPACE, room, concurrency=3, on_trajectory=lambda trajectory: None)
        )
        await asyncio.sleep(0.05)
        assert agent.open_sessions == 3
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    asyncio.run(cancelled())
    assert [desktop.closed for desktop in room.desktops] == [1] * 3
    assert agent.open_sessions == 0
