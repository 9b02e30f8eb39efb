"""An episode ends as data, whatever breaks; its checker speaks once, and nothing stays open."""

import asyncio

import pytest

from flywheel.actions.registry import action_space
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.envs.simulated.tasks import generate_tasks
from flywheel.errors import AgentError, EvaluatorError, InfrastructureError, SetupError
from flywheel.rollout.agents.scripted import ScriptedAgent
from flywheel.rollout.episode import UNPARSED_LIMIT, EpisodeSpec, run_episode
from flywheel.types import Answer, Click, Done, Sampling, Size, Task, Trajectory, Wait
from tests.rollout.faults import FaultyEnv, Parrot, ShortEnv

SPACE = action_space("computer_use")
SCREEN = Size(160, 128)


def task_of(family: str) -> Task:
    (task,) = generate_tasks(split="train", count=1, seed=0, screen=SCREEN, families=(family,), levels=(1,))
    return task


def play(env: FaultyEnv, agent: Parrot | ScriptedAgent, task: Task, max_turns: int = 6) -> Trajectory:
    spec = EpisodeSpec("e", task, Sampling(seed=5), max_turns, group_id="g", experiment="x", iteration=3, worker="w")
    return asyncio.run(run_episode(env, agent, SPACE, spec))


def test_a_solved_task_is_completed_and_judged_once() -> None:
    env = FaultyEnv(SimulatedEnv(SCREEN))
    played = play(env, ScriptedAgent(SPACE), task_of("click"))
    assert (played.outcome, played.stop_reason, played.task_reward, played.success) == ("completed", "done", 1.0, True)
    assert env.evaluations == 1
    assert isinstance(env.actions[-1], Done)
    assert [turn.action for turn in played.turns] == env.actions
    assert (played.group_id, played.experiment, played.iteration, played.worker) == ("g", "x", 3, "w")
    assert played.action_space == "computer_use/1"
    assert played.seed == played.sampling.seed == 5
    assert played.wall_seconds > 0


def test_giving_up_reaches_the_environment() -> None:
    """The checker of an infeasible task must see it: only then is it the right answer."""
    env = FaultyEnv(SimulatedEnv(SCREEN))
    played = play(env, Parrot(SPACE, [Done("failure")]), task_of("infeasible"))
    assert env.actions == [Done("failure")]
    assert played.success
    feasible = play(FaultyEnv(SimulatedEnv(SCREEN)), Parrot(SPACE, [Done("failure")]), task_of("click"))
    assert feasible.task_reward == 0.0


def test_an_answer_ends_the_episode() -> None:
    env = FaultyEnv(SimulatedEnv(SCREEN))
    played = play(env, Parrot(SPACE, [Answer("42")]), task_of("click"))
    assert (played.outcome, played.stop_reason) == ("completed", "answer")
    assert env.actions == [Answer("42")]
    assert env.evaluations == 1


def test_running_out_of_turns_is_judged_all_the_same() -> None:
    env = FaultyEnv(SimulatedEnv(SCREEN))
    played = play(env, Parrot(SPACE, [Wait(1.0)]), task_of("click"), max_turns=4)
    assert (played.outcome, played.stop_reason, played.task_reward) == ("truncated", "max_turns", 0.0)
    assert len(played.turns) == 4
    assert env.evaluations == 1


def test_unreadable_answers_are_told_to_the_policy_and_end_the_episode() -> None:
    env = FaultyEnv(SimulatedEnv(SCREEN))
    played = play(env, Parrot(SPACE, ["I do not know."]), task_of("click"), max_turns=10)
    assert (played.outcome, played.stop_reason) == ("truncated", "unparsed")
    assert len(played.turns) == UNPARSED_LIMIT
    assert env.actions == []
    assert env.evaluations == 1
    first, second, _ = played.turns
    assert first.action is None
    assert not first.executed
    assert first.error
    assert second.observation.last_result == first.error
    assert second.observation.screenshot == first.observation.screenshot


def test_unreadable_answers_count_only_in_a_row() -> None:
    env = FaultyEnv(SimulatedEnv(SCREEN))
    sayings = ["what?", "what?", Wait(1.0), "what?", "what?", Done()]
    played = play(env, Parrot(SPACE, sayings), task_of("click"), max_turns=10)
    assert (played.outcome, len(played.turns)) == ("completed", 6)


def test_an_action_outside_the_screen_is_told_and_not_executed() -> None:
    text = SPACE.format(Click(1, 1), SCREEN).replace("[", "[5").replace(", ", ", 5")
    env = FaultyEnv(SimulatedEnv(SCREEN))
    played = play(env, Parrot(SPACE, [text, Done()]), task_of("click"))
    assert played.turns[0].action is None
    assert played.turns[0].error
    assert env.actions == [Done()]


@pytest.mark.parametrize(
    ("at", "fault", "kind", "turns"),
    [
        ("reset", SetupError("The task's file is gone."), "setup", 0),
        ("reset", InfrastructureError("The desktop does not answer."), "infrastructure", 0),
        ("step", InfrastructureError("The desktop was lost."), "infrastructure", 2),
        ("evaluate", EvaluatorError("The checker crashed."), "evaluator", 3),
        ("evaluate", InfrastructureError("The desktop was lost."), "infrastructure", 3),
    ],
)
def test_what_an_environment_does_to_an_episode_is_data(at: str, fault: Exception, kind: str, turns: int) -> None:
    env = FaultyEnv(SimulatedEnv(SCREEN), at, fault, from_step=2)
    agent = Parrot(SPACE, [Wait(1.0), Wait(1.0), Done()])
    played = play(env, agent, task_of("click"))
    assert (played.outcome, played.failure, played.stop_reason) == ("failed", kind, "error")
    assert played.task_reward is None
    assert not played.success
    assert played.error == str(fault)
    assert len(played.turns) == turns
    assert agent.open_sessions == 0


def test_what_an_agent_does_is_data_too() -> None:
    env = FaultyEnv(SimulatedEnv(SCREEN))
    agent = Parrot(SPACE, [Wait(1.0), Done()], AgentError("The server is gone."))
    played = play(env, agent, task_of("click"))
    assert (played.outcome, played.failure, played.task_reward) == ("failed", "agent", None)
    assert len(played.turns) == 1
    assert env.evaluations == 0
    assert agent.open_sessions == 0


def test_a_bug_is_no_data() -> None:
    env = FaultyEnv(SimulatedEnv(SCREEN), "step", ZeroDivisionError("a bug"))
    agent = Parrot(SPACE, [Done()])
    with pytest.raises(ZeroDivisionError):
        play(env, agent, task_of("click"))
    assert agent.open_sessions == 0


def test_an_environment_that_says_it_is_over_ends_the_episode() -> None:
    played = play(ShortEnv(SimulatedEnv(SCREEN)), Parrot(SPACE, [Wait(1.0)]), task_of("click"))
    assert (played.outcome, len(played.turns)) == ("completed", 1)
