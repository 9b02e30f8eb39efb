"""The shaped reward of policy-gradient training. Filtering of successes never looks at it, only at the task reward.

    shaped = clamp01(task_reward + shaping * partial - penalties)

Two steps, so that the arithmetic can be checked against figures: `evidence` looks at a trajectory and says per turn
what happened; `shape` turns that into a reward and its terms, without noise. With f the fraction of turns, n the turns:

    partial       sum of weight * score; every score lies in [0, 1]
      parse_valid, executed, a11y_grounding, terminal_changed     f for which it holds
      screen_diff, a11y_delta                                     mean over turns of the measured change itself
      tool_calling    .4 min(1, distinct kinds / 3) + .4 complexity + .2 min(1, modalities / 2)
      efficiency      max(0, (max_turns - n) / max_turns)
    penalties     min(cap, slope * f) each: repeated and unread actions (from two turns on), fallback parsing, waits

Source: the OSWorld VLM training cookbook with the figures of its shipped configuration. One figure fixes what its
text leaves open: three turns (click, write, press) with screen_diff .02 and a11y_delta .1 have partial .42225. That
comes out only when the changes enter as plain means, and when a kind counts as a modality by its exact name, `write`
and `press` being none. Our evidence names kinds canonically (click, type, key), and such an episode has partial .43725.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from PIL import Image

from flywheel.types import Action, Click, Observation, Screenshot, Trajectory, Turn

Complexity = Literal["low", "medium", "high"]

TURN_RANGES: dict[Complexity, tuple[int, int]] = {"low": (2, 5), "medium": (5, 12), "high": (10, 25)}
"""Turns that a task of that complexity should take."""

MODALITIES = frozenset({"click", "type", "key", "scroll", "drag", "wait"})

THUMBNAIL = 64
"""Side of the grey thumbnails on which screens are compared, pixels."""


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """Unitless. The defaults are the cookbook's configuration; its code defaults differ in
    `a11y_grounding=0.30, tool_calling=0.25`."""

    shaping: float = 0.3
    parse_valid: float = 0.10
    executed: float = 0.15
    a11y_grounding: float = 0.10
    tool_calling: float = 0.15
    efficiency: float = 0.05
    screen_diff: float = 0.05
    a11y_delta: float = 0.05
    terminal_changed: float = 0.05
    repeat: float = 0.40
    repeat_cap: float = 0.30
    unknown: float = 0.30
    unknown_cap: float = 0.15
    fallback: float = 0.5
    fallback_cap: float = 0.5
    wait: float = 0.3
    wait_cap: float = 0.3


@dataclass(frozen=True, slots=True)
class TurnEvidence:
    """What can be said of one turn.

    `kind` is the sort of action, "" where the text could not be read; `signature` is the whole action value, so that
    two actions repeat only when everything in them is equal. `screen_diff` and `a11y_delta` lie in [0, 1].
    """

    kind: str
    signature: Hashable
    parsed: bool = True
    executed: bool = True
    fallback: bool = False
    grounded: bool = False
    screen_diff: float = 0.0
    a11y_delta: float = 0.0
    terminal_changed: bool = False


def shaped_reward(
    trajectory: Trajectory,
    *,
    max_turns: int,
    complexity: Complexity = "low",
    weights: RewardWeights = RewardWeights(),
) -> tuple[float, dict[str, float]]:
    """The shaped reward of a judged trajectory in [0, 1] and its terms (see `shape`).

    Raises: ValueError if the trajectory was not judged; an infrastructure failure has no reward, and 0 would be a lie.
    """
    if trajectory.task_reward is None:
        raise ValueError(f"Trajectory {trajectory.id} was not judged and has no reward; leave it out.")
    return shape(
        evidence(trajectory),
        trajectory.task_reward,
        max_turns=max_turns,
        complexity=complexity,
        weights=weights,
    )


def shape(
    turns: Sequence[TurnEvidence],
    task_reward: float,
    *,
    max_turns: int,
    complexity: Complexity = "low",
    weights: RewardWeights = RewardWeights(),
) -> tuple[float, dict[str, float]]:
    """The reward in [0, 1] and its terms: `task_reward`, the scores of the partial reward in [0, 1] by name, `partial`
    (their weighted sum), and `repeat_penalty`, `unknown_penalty`, `fallback_penalty`, `wait_penalty` as subtracted."""
    scores = _scores(turns, max_turns, complexity)
    partial = sum(getattr(weights, name) * score for name, score in scores.items())
    penalties = _penalties(turns, weights)
    reward = task_reward + weights.shaping * partial - sum(penalties.values())
    terms = {"task_reward": task_reward, **scores, "partial": partial, **penalties}
    return min(1.0, max(0.0, reward)), terms


def _scores(turns: Sequence[TurnEvidence], max_turns: int, complexity: Complexity) -> dict[str, float]:
    return {
        "parse_valid": _mean(turns, lambda turn: turn.parsed),
        "executed": _mean(turns, lambda turn: turn.executed),
        "a11y_grounding": _mean(turns, lambda turn: turn.grounded),
        "tool_calling": _tool_calling(turns, complexity),
        "efficiency": max(0.0, (max_turns - len(turns)) / max_turns),
        "screen_diff": _mean(turns, lambda turn: turn.screen_diff),
        "a11y_delta": _mean(turns, lambda turn: turn.a11y_delta),
        "terminal_changed": _mean(turns, lambda turn: turn.terminal_changed),
    }


def _tool_calling(turns: Sequence[TurnEvidence], complexity: Complexity) -> float:
    """Variety of actions, and a number of turns that fits the task."""
    if not turns:
        return 0.0
    kinds = {turn.kind for turn in turns if turn.parsed}
    low, high = TURN_RANGES[complexity]
    fit = min(1.0, len(turns) / low) if len(turns) <= high else max(0.5, high / len(turns))
    return 0.4 * min(1.0, len(kinds) / 3) + 0.4 * fit + 0.2 * min(1.0, len(kinds & MODALITIES) / 2)


def _penalties(turns: Sequence[TurnEvidence], weights: RewardWeights) -> dict[str, float]:
    enough = len(turns) >= 2  # a single turn repeats nothing, and one unread answer ends the episode anyway
    repeats = sum(now.parsed and now.signature == before.signature for before, now in pairwise(turns))
    repeated = repeats / len(turns) if enough else 0.0
    unknown = _mean(turns, lambda turn: not turn.parsed) if enough else 0.0
    return {
        "repeat_penalty": min(weights.repeat_cap, weights.repeat * repeated),
        "unknown_penalty": min(weights.unknown_cap, weights.unknown * unknown),
        "fallback_penalty": min(weights.fallback_cap, weights.fallback * _mean(turns, lambda turn: turn.fallback)),
        "wait_penalty": min(weights.wait_cap, weights.wait * _mean(turns, lambda turn: turn.kind == "wait")),
    }


def _mean(turns: Sequence[TurnEvidence], score: Callable[[TurnEvidence], float]) -> float:
    return sum(map(score, turns)) / len(turns) if turns else 0.0


# --- looking at a trajectory -------------------------------------------------------------------------


def evidence(trajectory: Trajectory) -> list[TurnEvidence]:
    """One entry a turn. What an action changed is read from the next turn's observation; nobody looks after the last
    turn, so that one changes nothing."""
    observations = [turn.observation for turn in trajectory.turns]
    thumbnails = [_thumbnail(seen.screenshot) for seen in observations]
    changes = [
        (_difference(thumbnails[i], thumbnails[i + 1]), _tree_delta(before, after), _terminal_changed(before, after))
        for i, (before, after) in enumerate(pairwise(observations))
    ]
    changes.append((0.0, 0.0, False))
    return [_turn_evidence(turn, *change) for turn, change in zip(trajectory.turns, changes, strict=False)]


def _turn_evidence(turn: Turn, screen_diff: float, a11y_delta: float, terminal_changed: bool) -> TurnEvidence:
    action = turn.action
    return TurnEvidence(
        kind="" if action is None else type(action).__name__.lower(),
        signature=action,
        parsed=action is not None,
        executed=turn.executed and action is not None,
        fallback=turn.fallback,
        grounded=is_grounded(action, turn.observation.accessibility_tree),
        screen_diff=screen_diff,
        a11y_delta=a11y_delta,
        terminal_changed=terminal_changed,
    )


def screen_difference(before: Screenshot, after: Screenshot) -> float:
    """Mean absolute difference of the two screens' 64 x 64 grey thumbnails, in [0, 1]."""
    return _difference(_thumbnail(before), _thumbnail(after))


def _thumbnail(screenshot: Screenshot | None) -> np.ndarray | None:
    """int16, shape (64, 64); the mean grey of each patch of the screen."""
    if screenshot is None:
        return None
    image = Image.fromarray(screenshot.array()).convert("L")
    return np.asarray(image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX), np.int16)


def _difference(before: np.ndarray | None, after: np.ndarray | None) -> float:
    if before is None or after is None:
        return 0.0
    return float(np.abs(before - after).mean()) / 255.0


def _tree_delta(before: Observation, after: Observation) -> float:
    """Share of accessibility lines that differ: one minus the lines in common over the longer tree's lines."""
    old, new = before.accessibility_tree, after.accessibility_tree
    if old is None or new is None or old == new:
        return 0.0
    old_lines, new_lines = Counter(old.splitlines()), Counter(new.splitlines())
    longer = max(old_lines.total(), new_lines.total())
    return 1.0 - (old_lines & new_lines).total() / longer if longer else 0.0


def _terminal_changed(before: Observation, after: Observation) -> bool:
    return before.terminal is not None and after.terminal is not None and before.terminal != after.terminal


# The bounds end a line, as "left,top,width,height" or as OSWorld's "(left, top)<tab>(width, height)".
_BOUNDS = re.compile(r"\(?(-?\d+),\s*(-?\d+)\)?[,\t]\s*\(?(\d+),\s*(\d+)\)?\s*$")


def is_grounded(action: Action | None, tree: str | None) -> bool:
    """Whether `action` clicks inside a named node of a linear accessibility tree.

    The tree has one node a line, fields separated by tabs: role, name, ..., bounds. Lines without a name or without
    bounds ground nothing.
    """
    if not isinstance(action, Click) or not tree:
        return False
    return any(_contains(line, action.x, action.y) for line in tree.splitlines())


def _contains(line: str, x: int, y: int) -> bool:
    fields = line.split("\t", 2)
    if len(fields) < 3 or not fields[1].strip():
        return False
    found = _BOUNDS.search(fields[2])
    if found is None:
        return False
    left, top, width, height = map(int, found.groups())
    return left <= x < left + width and top <= y < top + height
