"""A trajectory as rows and back.

Tokens, logprobs and numbers come back exactly; screenshots come back with the same pixels, raw ones losslessly
encoded. Task files come back as JSON knows them (a tuple inside one becomes a list).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from flywheel.errors import StoreError
from flywheel.store.codec import action_from_json, action_to_json, action_type, to_json
from flywheel.store.images import Pack
from flywheel.store.live import LiveEpisode
from flywheel.store.schema import EPISODES_SCHEMA, STEPS_SCHEMA
from flywheel.types import Observation, PolicyRef, Sampling, Screenshot, Task, Trajectory, Turn

_EPISODE, _STEP = pa.struct(list(EPISODES_SCHEMA)), pa.struct(list(STEPS_SCHEMA))

Rows: TypeAlias = pa.Table | pa.RecordBatch
Blob = Callable[[Mapping[str, Any]], bytes]
"""A row of `steps` -> the bytes of its image, checked against their hash."""


def encode(trajectory: Trajectory, *, partition: str, attempt: int, codec: Literal["png", "webp"]) -> LiveEpisode:
    """The rows and the images of an episode. Raises `StoreError` when something cannot be stored."""
    pack = Pack(codec)
    keys = _keys(trajectory, partition, attempt)
    steps = [keys | _step_row(number, turn, pack) for number, turn in enumerate(trajectory.turns)]
    try:
        episode = _batch([keys | _episode_row(trajectory)], _EPISODE, EPISODES_SCHEMA)
        return LiveEpisode(episode, _batch(steps, _STEP, STEPS_SCHEMA), b"".join(pack.chunks))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise StoreError(f"Trajectory '{trajectory.id}' cannot be stored: {str(error).splitlines()[0]}.") from error


def _batch(rows: list[dict[str, Any]], row: pa.StructType, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(pa.array(rows, row).flatten(), schema=schema)


def _keys(trajectory: Trajectory, partition: str, attempt: int) -> dict[str, Any]:
    return {
        "experiment": trajectory.experiment,
        "iteration": trajectory.iteration,
        "partition": partition,
        "attempt": attempt,
        "episode_id": trajectory.id,
        "policy": trajectory.policy.version,
    }


def _episode_row(trajectory: Trajectory) -> dict[str, Any]:
    task, policy, sampling = trajectory.task, trajectory.policy, trajectory.sampling
    return {
        "policy_uri": policy.uri,
        "policy_parent": policy.parent,
        "policy_fingerprint": policy.fingerprint,
        "task_id": task.id,
        "domain": task.domain,
        "family": task.family,
        "level": task.level,
        "split": task.split,
        "instruction": task.instruction,
        "infeasible": task.infeasible,
        "platform": task.platform,
        "task_config": to_json(task.config),
        "task_evaluator": to_json(task.evaluator),
        "task_raw": to_json(task.raw),
        "group_id": trajectory.group_id,
        "worker": trajectory.worker,
        "n_steps": len(trajectory.turns),
        "seed": trajectory.seed,
        "success": trajectory.success,
        "task_reward": trajectory.task_reward,
        "shaped_reward": trajectory.shaped_reward,
        "reward_terms": list(trajectory.reward_terms.items()),
        "outcome": trajectory.outcome,
        "failure": trajectory.failure,
        "stop_reason": trajectory.stop_reason,
        "error": trajectory.error,
        "advantage": trajectory.advantage,
        "action_space": trajectory.action_space,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "sampling_seed": sampling.seed,
        "started_at": trajectory.started_at,
        "wall_seconds": trajectory.wall_seconds,
    }


def _step_row(number: int, turn: Turn, pack: Pack) -> dict[str, Any]:
    screenshot = turn.observation.screenshot
    image = None if screenshot is None else pack.add(screenshot)
    return {
        "step": number,
        "prompt_ids": turn.prompt_ids,
        "completion_ids": turn.completion_ids,
        "logprobs": turn.logprobs,
        "text": turn.text,
        "action_type": None if turn.action is None else action_type(turn.action),
        "action": None if turn.action is None else action_to_json(turn.action),
        "executed": turn.executed,
        "fallback": turn.fallback,
        "error": turn.error,
        "finish_reason": turn.finish_reason,
        "model_seconds": turn.model_seconds,
        "env_seconds": turn.env_seconds,
        "last_result": turn.observation.last_result,
        "terminal": turn.observation.terminal,
        "accessibility_tree": turn.observation.accessibility_tree,
        "image_hash": image and image.hash,
        "image_codec": image and image.codec,
        "image_width": screenshot and screenshot.width,
        "image_height": screenshot and screenshot.height,
        "image_offset": image and image.offset,
        "image_length": image and image.length,
        "image_grid": turn.image_grid,
    }


def decode(episodes: Rows, steps: Rows, blob: Blob) -> list[Trajectory]:
    """Trajectories of `episodes`, whose turns are the rows of `steps`, in the same order."""
    turns = _turns(steps, blob)
    trajectories, first = [], 0
    for row in _rows(episodes):
        end = first + row["n_steps"]
        trajectories.append(_trajectory(row, tuple(turns[first:end])))
        first = end
    return trajectories


def _turns(steps: Rows, blob: Blob) -> list[Turn]:
    return [
        Turn(
            observation=Observation(
                None if row["image_hash"] is None else _screenshot(row, blob),
                row["accessibility_tree"],
                row["terminal"],
                row["last_result"],
            ),
            text=row["text"],
            action=None if row["action"] is None else action_from_json(row["action"]),
            prompt_ids=row["prompt_ids"],
            completion_ids=row["completion_ids"],
            logprobs=row["logprobs"],
            image_grid=row["image_grid"],
            finish_reason=row["finish_reason"],
            fallback=row["fallback"],
            executed=row["executed"],
            error=row["error"],
            model_seconds=row["model_seconds"],
            env_seconds=row["env_seconds"],
        )
        for row in _rows(steps)
    ]


def _screenshot(row: Mapping[str, Any], blob: Blob) -> Screenshot:
    return Screenshot(blob(row), row["image_width"], row["image_height"], row["image_codec"])


def _trajectory(row: Mapping[str, Any], turns: tuple[Turn, ...]) -> Trajectory:
    return Trajectory(
        id=row["episode_id"],
        task=_task(row),
        policy=PolicyRef(row["policy"], row["policy_uri"], row["policy_parent"], row["policy_fingerprint"]),
        turns=turns,
        outcome=row["outcome"],
        stop_reason=row["stop_reason"],
        task_reward=row["task_reward"],
        group_id=row["group_id"],
        failure=row["failure"],
        error=row["error"],
        shaped_reward=row["shaped_reward"],
        reward_terms=dict(row["reward_terms"]),
        advantage=row["advantage"],
        experiment=row["experiment"],
        iteration=row["iteration"],
        action_space=row["action_space"],
        sampling=Sampling(row["temperature"], row["top_p"], row["max_tokens"], row["sampling_seed"]),
        worker=row["worker"],
        seed=row["seed"],
        started_at=row["started_at"],
        wall_seconds=row["wall_seconds"],
    )


def _task(row: Mapping[str, Any]) -> Task:
    return Task(
        id=row["task_id"],
        instruction=row["instruction"],
        domain=row["domain"],
        config=tuple(json.loads(row["task_config"])),
        evaluator=json.loads(row["task_evaluator"]),
        family=row["family"],
        level=row["level"],
        split=row["split"],
        infeasible=row["infeasible"],
        platform=row["platform"],
        raw=json.loads(row["task_raw"]),
    )


def _rows(table: Rows) -> list[dict[str, Any]]:
    names = table.schema.names
    columns = [_values(table.column(name)) for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """As `to_pylist`, with lists of numbers as tuples and ten times as fast on them."""
    if not pa.types.is_list(column.type):
        values: list[Any] = column.to_pylist()
        return values
    tuples: list[Any] = []
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        offsets, flat = chunk.offsets.to_pylist(), chunk.values.to_numpy(zero_copy_only=False).tolist()
        present = chunk.is_valid().to_pylist()
        tuples += [
            tuple(flat[a:b]) if there else None for a, b, there in zip(offsets, offsets[1:], present, strict=False)
        ]
    return tuples
