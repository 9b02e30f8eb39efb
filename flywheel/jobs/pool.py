"""Rollout workers: forked processes with one thread each that share the policy's weights.

A tiny model keeps one core busy per process, so two processes play twice as fast where two threads would not. The
workers are forked before torch starts any thread; the weights lie in shared memory, so what a trainer writes is what
the next rollout reads, without a copy. Episodes are dealt out by index, which makes the result independent of timing.
"""

import asyncio
import multiprocessing as mp
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from flywheel.config import Config
from flywheel.envs.simulated.env import SimulatedEnv
from flywheel.errors import InfrastructureError
from flywheel.modeling.policy import load_policy
from flywheel.rollout.agents.local import LocalAgent
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.groups import play
from flywheel.types import PolicyRef, Size, Trajectory

Sink = Callable[[Trajectory], None]


@dataclass(frozen=True, slots=True)
class _Work:
    specs: list[EpisodeSpec]
    policy: PolicyRef


def make_env(config: Config) -> SimulatedEnv:
    """One desktop of the configured kind."""
    return SimulatedEnv(Size(config.env.width, config.env.height), config.env.layout, config.env.accessibility)


class RolloutPool:
    """`with RolloutPool(config, policy) as pool: trajectories = pool.play(specs)`.

    Args:
        config: desktop, concurrency and number of workers.
        policy: loaded once, before the fork.
        sink: called in the worker for each trajectory as it ends (to publish it); what it keeps is its own business.
        collect: send trajectories back to the caller.
    """

    def __init__(self, config: Config, policy: PolicyRef, *, sink: Sink | None = None, collect: bool = True) -> None:
        self.config, self.policy = config, policy
        self._sink, self._collect = sink, collect
        # A forked child of a process with running OpenMP threads hangs in its first parallel region.
        torch.set_num_threads(1)
        self.model, self.chat = load_policy(config, policy)
        self.model.share_memory()
        self._count = config.rollout.workers or len(os.sched_getaffinity(0))
        self._workers: list[tuple[Any, Connection]] = []

    def __enter__(self) -> "RolloutPool":
        context = mp.get_context("fork")
        for index in range(self._count):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._serve, args=(index, theirs), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))
        return self

    def __exit__(self, *_: object) -> None:
        for process, connection in self._workers:
            connection.close()
            process.join(5)
            if process.is_alive():
                process.kill()

    def play(
        self, specs: Sequence[EpisodeSpec], *, policy: PolicyRef | None = None, on_done: Callable[[], None] | None = None
    ) -> list[Trajectory]:
        """Play all episodes; trajectories in the order of `specs` (none where `collect` is off).

        Raises `InfrastructureError` when a worker dies, and with the worker's own traceback when it has a bug.
        """
        shares = [list(specs[index :: len(self._workers)]) for index in range(len(self._workers))]
        for (_, connection), share in zip(self._workers, shares, strict=True):
            connection.send(_Work(share, policy or self.policy))
        found: dict[str, Trajectory] = {}
        open_connections = [connection for _, connection in self._workers]
        while open_connections:
            for connection in wait(open_connections):
                message = self._receive(connection)  # type: ignore[arg-type]
                if message is None:
                    open_connections.remove(connection)  # type: ignore[arg-type]
                    continue
                if isinstance(message, Trajectory):
                    found[message.id] = message
                if on_done is not None:
                    on_done()
        return [found[spec.id] for spec in specs] if self._collect else []

    def _receive(self, connection: Connection) -> Trajectory | str | None:
        try:
            message = connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise InfrastructureError("A rollout worker died; look for the out-of-memory killer in the log.") from error
        if isinstance(message, Exception):
            raise message
        return message  # type: ignore[no-any-return]

    # --- in the worker --------------------------------------------------------------------------------------

    def _serve(self, index: int, connection: Connection) -> None:
        try:
            while True:
                work: _Work = connection.recv()
                asyncio.run(self._play(work, f"worker-{index}", connection))
                connection.send(None)
        except EOFError:
            return
        except Exception as error:  # the parent raises it: a bug stops the run, with its traceback
            error.add_note(traceback.format_exc())
            connection.send(error)

    async def _play(self, work: _Work, worker: str, connection: Connection) -> None:
        agent = LocalAgent(self.model, self.chat, work.policy)

        def finish(trajectory: Trajectory) -> None:
            if self._sink is not None:
                self._sink(trajectory)
            connection.send(trajectory if self._collect else trajectory.id)

        await play(
            [replace(spec, worker=worker) for spec in work.specs],
            agent,
            self.chat.space,
            lambda: make_env(self.config),
            concurrency=max(1, self.config.rollout.concurrency // self._count),
            on_trajectory=finish,
        )

