"""One env server for all tests that only use it."""

import json
from collections.abc import Iterator

import pytest

from flywheel.envs.server.places import guest_python, server_python
from tests.envs.server.machines.qemu_guests import console_guest
from tests.envs.server.serving import Served, serving


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Three simulated desktops behind HTTP."""
    with serving(tmp_path_factory.mktemp("desktops"), "-n", "3", "--bridge-ttl", "30") as running:
        yield running


@pytest.fixture(scope="session")
def served_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A virtual machine without a server of its own, behind HTTP."""
    options = json.dumps({"guest": str(console_guest(build=True))})
    arguments = ("--backend", "qemu", "--episode", "console", "--options", options)
    with serving(tmp_path_factory.mktemp("machines"), *arguments, ready=False) as running:
        running.wait_for(300, free=1)
        yield running


@pytest.fixture(scope="session")
def served_xvfb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A sandboxed X desktop with OSWorld's evaluators, behind HTTP."""
    root = tmp_path_factory.mktemp("xvfb")
    for venv in (server_python().parents[1], guest_python().parents[1]):
        (root / venv.name).symlink_to(venv)
    with serving(root, "--backend", "xvfb", "--screen", "640x400", ready=False) as running:
        running.wait_for(120, free=1)
        yield running
