"""Outcome judge: a vision-language model is asked whether a task was done, several times, and the votes are counted.

It stands in where a task has no evaluator, and nowhere else. Its verdict is an opinion: it is kept as the reward term
`judge` and never as `task_reward`, so no success rate ever mixes the two. How far to trust it is measured against the
evaluators that there are (`flywheel judge`).

Keeps the self-consistency vote over the last screenshots (ZeroGUI arXiv:2505.23762, WebRL's outcome reward model
arXiv:2411.02337). Drops training a reward model, and unanimity: the share of votes that counts is a setting. Limit: the
screen after the last action is not recorded, so an episode that was truncated is judged by the look before it.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from flywheel.envs.wire import action_to_json
from flywheel.rollout.agents.hosted import HostedModel, Message, look
from flywheel.sections import HostedConfig, JudgeConfig
from flywheel.types import Screenshot, Trajectory, Turn

TERM, VOTES = "judge", "judge_votes"
"""Reward terms: share of the votes for success, and how many votes could be read."""

INSTRUCTIONS = (
    "You judge whether an agent that operates a computer has done its task. You see its last screenshots, oldest "
    "first, and everything it did. Say success only if what the screenshots show is all that the task asks for; what "
    "the agent claims is no evidence. If the task cannot be done on this computer, saying so is success. Reason "
    "briefly, then end with one line: `Verdict: success` or `Verdict: failure`."
)
_VERDICT = re.compile(r"verdict\W*(success|failure)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Votes for and against; answers without a verdict count for neither."""

    success: int
    failure: int

    @property
    def votes(self) -> int:
        return self.success + self.failure

    @property
    def share(self) -> float | None:
        """Of the votes that say success; None where none could be read."""
        return self.success / self.votes if self.votes else None


def read_vote(text: str) -> bool | None:
    """What an answer decides last; None where it decides nothing."""
    found = _VERDICT.findall(text)
    return found[-1].lower() == "success" if found else None


@dataclass(frozen=True, slots=True)
class Question:
    """What the judge is shown of one episode: screenshots, oldest first, and words."""

    id: str
    shots: tuple[Screenshot, ...]
    text: str

    @property
    def messages(self) -> list[Message]:
        """For the chat-completions protocol."""
        parts = [*map(look, self.shots), {"type": "text", "text": self.text}]
        return [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": parts}]


Answers = Callable[[Question], Awaitable[Sequence[str]]]
"""A question -> one answer a vote."""


def question(trajectory: Trajectory, screenshots: int) -> Question:
    """The task, its last screenshots, and every action."""
    shots = [turn.observation.screenshot for turn in trajectory.turns if turn.observation.screenshot]
    lines = [f"{number}. {_done(turn)}" for number, turn in enumerate(trajectory.turns, 1)]
    told = f"[Task]\n{trajectory.task.instruction}\n[Actions]\n" + "\n".join(lines)
    return Question(trajectory.id, tuple(shots[-screenshots:]), told)


def _done(turn: Turn) -> str:
    return json.dumps(action_to_json(turn.action)) if turn.action else f"nothing: {turn.error}"


def needs_judge(trajectory: Trajectory) -> bool:
    """Whether an episode was played to its end and there is no evaluator to judge it."""
    return not trajectory.task.evaluator and trajectory.failure is None and bool(trajectory.turns)


async def ask_verdicts(
    trajectories: Sequence[Trajectory], screenshots: int, answers: Answers, at_once: int
) -> list[Verdict]:
    """One verdict a trajectory, by whoever gives `answers` to at most so many questions at once."""
    gate = asyncio.Semaphore(at_once)

    async def ask(trajectory: Trajectory) -> Verdict:
        async with gate:
            votes = [read_vote(text) for text in await answers(question(trajectory, screenshots))]
        return Verdict(votes.count(True), votes.count(False))

    return list(await asyncio.gather(*map(ask, trajectories)))


async def hosted_verdicts(
    trajectories: Sequence[Trajectory], hosted: HostedConfig, judge: JudgeConfig
) -> list[Verdict]:
    """Those of a model behind the protocol.

    Raises: `AgentError` when the judge does not answer, `ConfigError` when it refuses.
    """
    async with HostedModel(hosted) as model:

        async def answers(asked: Question) -> list[str]:
            replies = await model.ask(
                asked.messages, temperature=judge.temperature, max_tokens=judge.max_tokens, count=judge.votes
            )
            return [reply.text for reply in replies]

        return await ask_verdicts(trajectories, judge.screenshots, answers, hosted.concurrency)


def with_verdict(trajectory: Trajectory, verdict: Verdict) -> Trajectory:
    """The trajectory with the verdict among its reward terms; `task_reward` stays what it is."""
    if verdict.share is None:
        return trajectory
    terms = {**trajectory.reward_terms, TERM: verdict.share, VOTES: float(verdict.votes)}
    return replace(trajectory, reward_terms=terms)


def accepted(trajectory: Trajectory, judge: JudgeConfig) -> bool:
    """Whether an episode without an evaluator counts as a success to learn from."""
    share = trajectory.reward_terms.get(TERM)
    return judge.enabled and trajectory.task_reward is None and share is not None and share >= judge.accept
