"""Fixtures around the made-up flywheel."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from made_up_house import House, make_config

from flywheel.config import Config
from flywheel.jobs.launcher import Launcher
from flywheel.resources.instance import quick_sqlite


@pytest.fixture(scope="session", autouse=True)
def _stages_importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        yield


@pytest.fixture(scope="module", autouse=True)
def _quick_sqlite() -> Iterator[None]:
    with quick_sqlite():
        yield


@pytest.fixture(scope="session")
def launcher(_stages_importable: None) -> Iterator[Launcher]:
    with Launcher(stages="asset_stages", grace=0.3) as launcher:
        yield launcher


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_config(tmp_path / "home")


@pytest.fixture
def house(config: Config, launcher: Launcher) -> Iterator[House]:
    house = House(config, launcher)
    yield house
    house.instance.dispose()


@pytest.fixture
def build_house(tmp_path: Path, launcher: Launcher) -> Callable[..., House]:
    return lambda **flywheel: House(make_config(tmp_path / "home", **flywheel), launcher)
