"""Rollout workers: forked processes with one thread each that share the policy's weights.

A tiny model keeps one core busy per process, so two processes play twice as fast where two threads would not. The
workers are forked before torch starts any thread; the weights lie in shared memory, so what a trainer writes is what
the next rollout reads, without a copy. Episodes are dealt out by index, which makes the result independent of timing.

A policy on a GPU is played by one worker in a thread: CUDA does not survive a fork, and one engine fills a GPU. Where a
server answers (`rollout.engine: sglang`), workers hold no weights, and it is handed new ones before they play.
"""

import asyncio
import multiprocessing as mp
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from flywheel.config import Config
from flywheel.errors import InfrastructureError
from flywheel.jobs.engines import make_engine
from flywheel.jobs.environments import make_env
from flywheel.jobs.publishing import Publication, Publisher
from flywheel.processes import die_with_parent
from flywheel.rollout.episode import EpisodeSpec
from flywheel.rollout.groups import play
from flywheel.store.opening import open_store
from flywheel.store.store import TrajectoryStore
from flywheel.types import PolicyRef, Trajectory

DEAD_WORKER = "A rollout worker was killed; look for the out-of-memory killer in the system's log and run it again."


@dataclass(frozen=True, slots=True)
class _Work:
    specs: list[EpisodeSpec]
    policy: PolicyRef
    mark: str
    publication: Publication | None
    digest: Callable[[Trajectory], Any] | None


@contextmanager
def begun(store: TrajectoryStore, partition: str, experiment: str) -> Iterator[Publication]:
    """A new attempt at a partition; a stage that fails before it has sealed it lets go of the partition.

    Raises `PartitionBusyError` when another process holds it.
    """
    attempt = store.begin(partition, experiment)
    try:
        yield Publication(partition, attempt)
    finally:
        store.release(partition, experiment)


class RolloutPool:
    """`with RolloutPool(config, policy) as pool: trajectories = pool.play(specs)`.

    Args:
        config: desktop, concurrency and number of workers.
        policy: loaded once, before the fork; by its server where there is one.
        finish: what a worker does to a trajectory before it is published (score it).
        digest: what of a trajectory is sent back to the caller; pickling pixels costs 1 ms an episode.
    """

    def __init__(
        self,
        config: Config,
        policy: PolicyRef,
        *,
        finish: Callable[[Trajectory], Trajectory],
        digest: Callable[[Trajectory], Any],
    ) -> None:
        self.config, self.policy = config, policy
        self._finish, self._digest = finish, digest
        # A forked child of a process with running OpenMP threads hangs in its first parallel region.
        torch.set_num_threads(1)
        self._engine = make_engine(config, policy)
        self.chat = self._engine.chat
        self._count = (config.rollout.workers or len(os.sched_getaffinity(0))) if self._engine.forks else 1
        self._workers: list[tuple[BaseProcess | threading.Thread, Connection]] = []

    @property
    def model(self) -> Any:
        """The weights, for a trainer: what it writes is what the next `play` samples from."""
        return self._engine.model

    def __enter__(self) -> "RolloutPool":
        if self._engine.forks:
            self._engine.share()
            self._fork()
        else:
            ours, theirs = mp.Pipe()
            thread = threading.Thread(target=self._serve, args=(0, theirs), daemon=True)
            thread.start()
            self._workers.append((thread, ours))
        return self

    def _fork(self) -> None:
        context = mp.get_context("fork")
        for index in range(self._count):
            ours, theirs = context.Pipe()
            held = [ours, *(connection for _, connection in self._workers)]
            process = context.Process(target=self._serve_in_fork, args=(index, theirs, held), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for worker, connection in self._workers:
            connection.close()
            if kind is not None and isinstance(worker, BaseProcess):
                worker.kill()
        for worker, _connection in self._workers:
            worker.join(5)
            if worker.is_alive() and isinstance(worker, BaseProcess):
                worker.kill()
                worker.join()

    def play(
        self,
        specs: Sequence[EpisodeSpec],
        *,
        policy: PolicyRef | None = None,
        publication: Publication | None = None,
        digest: Callable[[Trajectory], Any] | None = None,
        on_done: Callable[[int], None] = lambda count: None,
    ) -> list[Any]:
        """Play all episodes, and publish them where `publication` says; digests in the order of `specs`.

        Args:
            policy: what the weights are called by now.
            digest: in place of the pool's own; a function of a module.
        Raises `InfrastructureError` when a worker dies, and with the worker's own traceback when it has a bug.
        """
        policy = policy or self.policy
        mark = self._engine.take(policy)
        for index, (_, connection) in enumerate(self._workers):
            share = list(specs[index :: len(self._workers)])
            try:
                connection.send(_Work(share, policy, mark, publication, digest))
            except BrokenPipeError as error:
                raise InfrastructureError(DEAD_WORKER) from error
        found: dict[str, Any] = {}
        waiting = {connection for _, connection in self._workers}
        while waiting:
            for connection in [c for c in wait(list(waiting)) if isinstance(c, Connection)]:
                message = self._receive(connection)
                if message is None:
                    waiting.remove(connection)
                else:
                    found[message[0]] = message[1]
                    on_done(len(found))
        return [found[spec.id] for spec in specs]

    def _receive(self, connection: Connection) -> tuple[str, Any] | None:
        try:
            message = connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise InfrastructureError(DEAD_WORKER) from error
        if isinstance(message, Exception):
            raise message
        return message  # type: ignore[no-any-return]

    # --- in the worker --------------------------------------------------------------------------------------

    def _serve_in_fork(self, index: int, connection: Connection, held: list[Connection]) -> None:
        die_with_parent()
        # The fork copied the parent's ends too; while a worker held one, no worker would ever see the parent hang up.
        for copy in held:
            copy.close()
        self._serve(index, connection)

    def _serve(self, index: int, connection: Connection) -> None:
        try:
            while True:
                work: _Work = connection.recv()
                asyncio.run(self._play(work, f"worker-{index}", connection))
                connection.send(None)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the parent is gone
        except Exception as error:  # the parent raises it: a bug stops the run, with its traceback
            error.add_note(traceback.format_exc())
            connection.send(error)

    async def _play(self, work: _Work, worker: str, connection: Connection) -> None:
        agent = self._engine.agent(work.policy, work.mark)
        digest = work.digest or self._digest
        publisher = Publisher(open_store(self.config), work.publication) if work.publication else None

        def take(trajectory: Trajectory) -> None:
            finished = self._finish(trajectory)
            if publisher:
                publisher.add([finished])
            connection.send((finished.id, digest(finished)))

        try:
            await play(
                [replace(spec, worker=worker) for spec in work.specs],
                agent,
                self.chat.space,
                lambda: make_env(self.config),
                concurrency=max(1, self.config.rollout.concurrency // self._count),
                on_trajectory=take,
            )
            if publisher:
                publisher.flush()
        finally:
            if publisher:
                publisher.close()
