"""What travels between processes that train together, and what a process alone is spared."""

import io
from dataclasses import replace

from flywheel.trainers.ensemble import Ensemble, _Key, _Pickler, _Unpickler, together
from flywheel.types import Screenshot
from tests.tiny import Tiny, episodes, some_tasks


class Counter:
    def __init__(self) -> None:
        self.ensemble = Ensemble()
        self.calls = 0

    @together
    def add(self, more: int, *, times: int = 1) -> int:
        """Count."""
        self.calls += more * times
        return self.calls


def test_alone_a_call_is_a_call() -> None:
    counter = Counter()
    assert counter.add(2, times=3) == counter.calls == 6
    assert (counter.ensemble.first, counter.ensemble.world) == (True, 1)
    assert counter.ensemble.total({"loss": 0.1}) == {"loss": 0.1}
    assert counter.ensemble.gathered("mine") == ["mine"]
    counter.ensemble.dismiss()


def test_each_screenshot_travels_once_and_everything_arrives(tiny: Tiny) -> None:
    """Trajectories and the documents made of them show the same screens, and siblings begin with the same one."""
    played = episodes(tiny, some_tasks(1), samples=2)
    here: dict[_Key, Screenshot] = {}
    there: dict[_Key, Screenshot] = {}

    def sent(call: object) -> tuple[object, int, int]:
        out = io.BytesIO()
        pickler = _Pickler(out, here)
        pickler.dump(call)
        there.update(pickler.new)
        return _Unpickler(io.BytesIO(out.getvalue()), there).load(), len(pickler.new), len(out.getvalue())

    call = [(trajectory, tiny.chat.sample(trajectory)) for trajectory in played]
    shown = {image.sha256 for trajectory, _ in call for image in screens(trajectory)}
    found, new, size = sent(call)
    assert repr(found) == repr(call)
    assert new == len(shown) < sum(len(screens(trajectory)) for trajectory, _ in call)
    assert size < len(next(iter(here.values())).data), "the call itself holds no pixels"
    again = [(replace(trajectory, advantage=1.0), sample) for trajectory, sample in call]
    found, new, _ = sent(again)
    assert (repr(found), new) == (repr(again), 0)


def screens(trajectory: object) -> list[Screenshot]:
    return [turn.observation.screenshot for turn in trajectory.turns]  # type: ignore[attr-defined]
