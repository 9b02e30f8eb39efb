"""Trajectories for tests and benchmarks: random, but the same for the same id."""

import hashlib
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from flywheel.types import (
    Action,
    Answer,
    Click,
    Code,
    Done,
    Drag,
    Key,
    Move,
    Observation,
    PolicyRef,
    Sampling,
    Screenshot,
    Scroll,
    Size,
    Task,
    Trajectory,
    Turn,
    Type,
    Wait,
)


def random_trajectory(
    id: str,
    turns: int = 4,
    size: tuple[int, int] = Size(320, 240),
    *,
    codec: Literal["raw", "png", "webp"] = "png",
    **fields: Any,
) -> Trajectory:
    """A trajectory like those of a desktop, deterministic in its arguments.

    Args:
        id: its id; everything random derives from it.
        turns: how many; the last one says that it is done.
        size: (width, height) of the screenshots, pixels.
        codec: how the screenshots come; `raw` as from the simulated desktop, the others as from a remote one.
        fields: of `Trajectory`, to set instead of drawing them.
    """
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], "big"))
    screen = Size(*size)
    succeeded = bool(rng.random() < 0.6)
    task = _task(rng, id)
    drawn = Trajectory(
        id=id,
        task=task,
        policy=PolicyRef("iter-01", "checkpoints/iter-01", "iter-00", "0f3a"),
        turns=_turns(rng, turns, screen, codec),
        outcome="completed",
        stop_reason="done",
        task_reward=float(succeeded),
        group_id=task.id,
        shaped_reward=float(succeeded) + 0.1,
        reward_terms={"task": float(succeeded), "format": 0.1},
        advantage=float(rng.normal()),
        iteration=1,
        sampling=Sampling(seed=int(rng.integers(0, 2**31))),
        worker="worker-0",
        seed=int(rng.integers(0, 2**62)),
        started_at=1.7e9 + float(rng.random()),
        wall_seconds=float(rng.random()),
    )
    return replace(drawn, **fields)


def _task(rng: np.random.Generator, id: str) -> Task:
    level = int(rng.integers(1, 5))
    return Task(
        id=f"task-{int(rng.integers(0, 40)):02d}",
        instruction="Open the settings, tick “Wi‑Fi” & press <Save>.",
        domain="desktop",
        config=({"type": "launch", "parameters": {"command": ["settings"]}},),
        evaluator={"func": "exact_match", "expected": {"type": "rule", "rules": {"expected": "on"}}},
        family="settings" if level < 3 else "forms",
        level=level,
        split="train" if rng.random() < 0.8 else "heldout",
        raw={"id": id, "snapshot": "init"},
    )


def _turns(
    rng: np.random.Generator, turns: int, screen: Size, codec: Literal["raw", "png", "webp"]
) -> tuple[Turn, ...]:
    """Every third screenshot repeats the one before it, as when an action has no effect."""
    made: list[Turn] = []
    pixels_HWC = desktop(rng, screen)
    screenshot = _screenshot(pixels_HWC, codec)
    for number in range(turns):
        if number and number % 3:
            pixels_HWC = pixels_HWC.copy()
            _rectangle(rng, pixels_HWC)
            screenshot = _screenshot(pixels_HWC, codec)
        action: Action = Done() if number == turns - 1 else random_action(rng, screen)
        tokens = int(rng.integers(8, 40))
        made.append(
            Turn(
                observation=Observation(screenshot, last_result="executed" if number else None),
                text=f"Action: turn {number}\n<tool_call>{action}</tool_call>",
                action=action,
                prompt_ids=tuple(rng.integers(0, 600, 60).tolist()),
                completion_ids=tuple(rng.integers(0, 600, tokens).tolist()),
                logprobs=tuple((-rng.exponential(0.3, tokens)).tolist()),
                image_grid=(1, max(1, screen.height // 16), max(1, screen.width // 16)),
                model_seconds=float(rng.random()),
                env_seconds=float(rng.random()),
            )
        )
    return tuple(made)


def _screenshot(pixels_HWC: np.ndarray, codec: Literal["raw", "png", "webp"]) -> Screenshot:
    raw = Screenshot.from_array(pixels_HWC)
    return raw if codec == "raw" else raw.encode(codec)


def desktop(rng: np.random.Generator, screen: Size) -> np.ndarray:
    """uint8 RGB, shape (height, width, 3): a gradient with windows on it."""
    shade_H11 = np.linspace(70, 130, screen.height)[:, None, None]
    colour_3 = np.array([0, 20, 40])
    pixels_HWC = np.broadcast_to(shade_H11 + colour_3, (screen.height, screen.width, 3)).astype(np.uint8)
    for _ in range(12):
        _rectangle(rng, pixels_HWC)
    return pixels_HWC


def _rectangle(rng: np.random.Generator, pixels_HWC: np.ndarray) -> None:
    """A bordered one with a line of small marks in it, like a widget with text."""
    height, width, _ = pixels_HWC.shape
    x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
    w, h = int(rng.integers(8, 9 + width // 3)), int(rng.integers(6, 7 + height // 4))
    pixels_HWC[y : y + h, x : x + w] = 40
    pixels_HWC[y + 1 : y + h - 1, x + 1 : x + w - 1] = rng.integers(150, 256, 3)
    text_HW = pixels_HWC[y + 3 : y + h - 3, x + 3 : x + w - 3, 0][:7]
    text_HW[rng.random(text_HW.shape) < 0.4] = 20


def random_action(rng: np.random.Generator, screen: Size) -> Action:
    """One of any kind that does not end an episode, inside the screen."""
    x, y = int(rng.integers(0, screen.width)), int(rng.integers(0, screen.height))
    choices: list[Action] = [
        Click(x, y),
        Click(x, y, "right", 2, ("ctrl",)),
        Move(x, y),
        Drag(x, y, (screen.width - 1 - x, screen.height - 1 - y)),
        Drag(x, y),
        Scroll(-3, 0, x, y),
        Scroll(2),
        Type("naïve <b>text</b> & more\n"),
        Key(("ctrl", "s")),
        Wait(0.5),
        Code("print('hello')"),
        Answer("42"),
    ]
    return choices[int(rng.integers(0, len(choices) - 1))]
