"""Processes that train one policy together: what the first is told to do, all of them do.

The first process plays, decides and speaks. A method marked `together` runs on every process when the first calls it,
with the same arguments; the others wait in `follow` for the next call. They wait on the CPU, in a group of their own:
a round of episodes takes longer than NCCL has patience, and a GPU that waits in NCCL is busy.

Screenshots are most of what is sent, and the same ones are in several calls of an update and several episodes of a
group. Each travels once, until they are forgotten.
"""

import io
import pickle
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
import torch.distributed as dist

from flywheel.types import Screenshot

PATIENCE = timedelta(days=30)
"""How long a call is waited for. A process that died is noticed by the launcher, which ends the others."""

_Key = tuple[str, int, int, str]
Given = ParamSpec("Given")
Found = TypeVar("Found")


class Ensemble:
    """This process and those that it trains with: all that a launcher started, or itself alone."""

    def __init__(self) -> None:
        several = dist.is_initialized()
        self.rank = dist.get_rank() if several else 0
        self.world = dist.get_world_size() if several else 1
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE) if self.world > 1 else None
        self._shown: dict[_Key, Screenshot] = {}

    @property
    def first(self) -> bool:
        return self.rank == 0

    def announce(self, name: str, *given: Any, **named: Any) -> None:
        """Have the others call a method of theirs by that name; nothing where there are none, or by one of them."""
        if self.first and self.world > 1:
            out = io.BytesIO()
            pickler = _Pickler(out, self._shown)
            pickler.dump((name, given, named))
            dist.broadcast_object_list([pickler.new, out.getvalue()], group=self._group)

    def follow(self, member: Any) -> None:
        """Call what the first process announces, until it dismisses the others."""
        while True:
            name, given, named = self._heard()
            if not name:
                return
            getattr(member, name)(*given, **named)

    def dismiss(self) -> None:
        """The others are done."""
        self.announce("")

    def forget(self) -> None:
        """Let go of the screenshots; every process does so at the same point."""
        self._shown.clear()

    def total(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Each figure summed over the processes, which all have the same ones."""
        if self._group is None:
            return dict(figures)
        sums = torch.tensor(list(figures.values()), dtype=torch.float64)
        dist.all_reduce(sums, group=self._group)
        return dict(zip(figures, sums.tolist(), strict=True))

    def gathered(self, own: Any) -> list[Any]:
        """What each process has, by rank, on the first; nothing on the others."""
        if self._group is None:
            return [own]
        found = [None] * self.world if self.first else None
        dist.gather_object(own, found, dst=0, group=self._group)
        return found or []

    def _heard(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        message: list[Any] = [None, None]
        dist.broadcast_object_list(message, group=self._group)
        new, call = message
        self._shown |= new
        found: tuple[str, tuple[Any, ...], dict[str, Any]] = _Unpickler(io.BytesIO(call), self._shown).load()
        return found


class Member(Protocol):
    """Who has methods that are called together."""

    ensemble: Ensemble


AMember = TypeVar("AMember", bound=Member)


def together(
    method: Callable[Concatenate[AMember, Given], Found],
) -> Callable[Concatenate[AMember, Given], Found]:
    """Have a method run on every process when the first calls it. Such methods must not call each other."""

    @wraps(method)
    def called(self: AMember, /, *given: Given.args, **named: Given.kwargs) -> Found:
        self.ensemble.announce(method.__name__, *given, **named)
        return method(self, *given, **named)

    return called


class _Pickler(pickle.Pickler):
    """Screenshots are named, and `new` holds those that the others have not been shown."""

    def __init__(self, out: io.BytesIO, shown: dict[_Key, Screenshot]) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self._shown = shown
        self.new: dict[_Key, Screenshot] = {}

    def persistent_id(self, obj: Any) -> _Key | None:
        if not isinstance(obj, Screenshot):
            return None
        key = (obj.sha256, obj.width, obj.height, obj.codec)
        if key not in self._shown:
            self._shown[key] = self.new[key] = obj
        return key


class _Unpickler(pickle.Unpickler):
    def __init__(self, call: io.BytesIO, shown: dict[_Key, Screenshot]) -> None:
        super().__init__(call)
        self._shown = shown

    def persistent_load(self, pid: Any) -> Screenshot:
        return self._shown[pid]
