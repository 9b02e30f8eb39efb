"""The process of one desktop: `PYTHON -m flywheel.envs.server.worker --episode simulated --fd 3 ...`.

It answers one command after another over a socket that it inherits, until the supervisor hangs up. Whatever an episode
prints goes to the worker's log, never onto the socket. Runs under the desktops' own Python, so nothing but the standard
library, numpy, Pillow and the lower rooms of flywheel is imported here.
"""

import argparse
import importlib
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from flywheel.envs.server.episodes.base import Episode
from flywheel.envs.wire import (
    action_from_json,
    capabilities_to_json,
    encode_frame,
    encode_observation,
    encode_result,
    error_to_json,
    frame_head,
    options_from_json,
    task_from_json,
)
from flywheel.errors import ConfigError, EvaluatorError, FlywheelError, InfrastructureError
from flywheel.processes import die_with_parent

EPISODES = {
    "simulated": "flywheel.envs.server.episodes.simulated:SimulatedEpisode",
    "console": "flywheel.envs.server.episodes.console:ConsoleEpisode",
    "osworld": "flywheel.envs.server.episodes.osworld:OSWorldEpisode",
}
"""Imported by the worker that plays it; `module:Class` names one that is not here."""


class Worker:
    """The commands of an episode, from and to frames. `start` makes the episode, so that its errors are answers too."""

    def __init__(self, make: Callable[[], Episode]) -> None:
        self._make = make
        self._made: Episode | None = None
        self._commands: dict[str, Callable[[dict[str, Any]], bytes]] = {
            "start": self._start,
            "reset": self._reset,
            "step": self._step,
            "observe": lambda _: encode_observation(self._episode.observe()),
            "evaluate": self._evaluate,
            "health": lambda _: encode_frame({"health": self._episode.health()}),
            "view": self._view,
            "recycle": self._recycle,
            "close": self._close,
        }

    @property
    def _episode(self) -> Episode:
        if self._made is None:
            raise InfrastructureError("The worker was asked for something before `start`.")
        return self._made

    def answer(self, frame: bytes) -> bytes:
        """The frame that answers a command; a failure is a frame with an `error`."""
        head, _ = frame_head(frame)
        try:
            return self._commands[head["command"]](head)
        except FlywheelError as error:
            return encode_frame(error_to_json(error))
        except Exception as error:  # the supervisor ends the lease with it and replaces this process
            traceback.print_exc()
            return encode_frame(error_to_json(error))

    def close(self) -> None:
        """Close the episode, if there is one."""
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def _start(self, _: dict[str, Any]) -> bytes:
        try:
            self._made = self._make()
            self._made.start()
        except ConfigError as error:
            return encode_frame({"unfit": str(error)})
        return encode_frame({"capabilities": capabilities_to_json(self._made.capabilities())})

    def _reset(self, head: dict[str, Any]) -> bytes:
        task, options = task_from_json(head["task"]), options_from_json(head["options"])
        return encode_observation(self._episode.reset(task, options))

    def _step(self, head: dict[str, Any]) -> bytes:
        return encode_result(self._episode.step(action_from_json(head["action"]), head["pause"]))

    def _evaluate(self, _: dict[str, Any]) -> bytes:
        reward = float(self._episode.evaluate())
        if not 0 <= reward <= 1:
            raise EvaluatorError(f"The task's checker gave {reward}, which is no reward between 0 and 1.")
        return encode_frame({"reward": reward})

    def _view(self, _: dict[str, Any]) -> bytes:
        shown = self._episode.view()
        return encode_frame({"why_not": shown} if isinstance(shown, str) else {"port": shown})

    def _recycle(self, _: dict[str, Any]) -> bytes:
        self._episode.recycle()
        return encode_frame({})

    def _close(self, _: dict[str, Any]) -> bytes:
        self.close()
        return encode_frame({})


def serve(connection: socket.socket, make: Callable[[], Episode]) -> None:
    """Answer until the other side hangs up; the episode is closed on every path."""
    worker = Worker(make)
    try:
        with connection.makefile("rwb") as stream:
            while len(size := stream.read(8)) == 8:
                answer = worker.answer(stream.read(int.from_bytes(size, "big")))
                stream.write(len(answer).to_bytes(8, "big"))
                stream.write(answer)
                stream.flush()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the supervisor is gone
    finally:
        worker.close()


def load_episode(name: str, machine: str, options: dict[str, Any]) -> Episode:
    """An episode by its name in `EPISODES`, or as `module:Class`. Raises `ConfigError`."""
    module, _, kind = EPISODES.get(name, name).partition(":")
    try:
        made = getattr(importlib.import_module(module), kind)
    except (ImportError, AttributeError, ValueError) as error:
        known = ", ".join(EPISODES)
        raise ConfigError(f"There is no episode '{name}' ({error}); choose {known} or write MODULE:CLASS.") from error
    episode: Episode = made(machine, options)
    return episode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episode", required=True, help=f"{', '.join(EPISODES)} or module:Class")
    parser.add_argument("--machine", default="", help="kind of machine it runs on")
    parser.add_argument("--options", type=json.loads, default={}, help="JSON object for episode and machine")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket")
    parser.add_argument("--parent", type=int, required=True, help="process id of the supervisor")
    given = parser.parse_args()
    die_with_parent()
    if os.getppid() != given.parent:
        sys.exit("The supervisor died before this worker began.")
    with socket.socket(fileno=given.fd) as connection:
        serve(connection, lambda: load_episode(given.episode, given.machine, given.options))


if __name__ == "__main__":
    main()
