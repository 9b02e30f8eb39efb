"""`flywheel dev`: the Dagster UI and daemon on a free port, gone as a whole when this process goes."""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from flywheel.config import load_config
from flywheel.errors import ConfigError
from flywheel.jobs.keeper import KeeperClient
from flywheel.resources.instance import dagster_home

FIRST_PORT = 3000
TRIES = 50


def free_port(host: str, port: int | None = None) -> int:
    """`port` itself, or the first free one from 3000. Raises `ConfigError` when there is none.

    Asks by connecting as well as by binding: two servers can hold one port without either noticing.
    """
    if port is not None:
        if not _is_free(host, port):
            raise ConfigError(f"Port {port} on {host} is in use; leave --port out and a free one is taken.")
        return port
    for candidate in range(FIRST_PORT, FIRST_PORT + TRIES):
        if _is_free(host, candidate):
            return candidate
    raise ConfigError(f"Ports {FIRST_PORT} to {FIRST_PORT + TRIES - 1} on {host} are all in use; name one with --port.")


def dev(
    profile: str = "embedded",
    settings: Sequence[str] = (),
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    announce: Callable[[str], None] = print,
) -> int:
    """Serve until interrupted; the exit status of `dagster dev`.

    Raises `ConfigError` for an unknown profile or setting, or a port in use.
    """
    config = load_config(profile, tuple(settings))
    port = free_port(host, port)
    env = {**os.environ, "FLYWHEEL_PROFILE": profile, "FLYWHEEL_SET": ";".join(settings)}
    env |= {"DAGSTER_HOME": str(dagster_home(config))}
    if (Path.cwd() / "dagster.yaml").is_file() and config.home_path == Path.cwd() / ".flywheel":
        # The file in this folder says the same, and Dagster warns of it when it is not used.
        del env["DAGSTER_HOME"]
    argv = [sys.executable, "-m", "dagster", "dev", "-m", "flywheel.definitions", "-h", host, "-p", str(port)]
    announce(f"Dagster UI: http://{host}:{port}  (ready in some 10 s, Ctrl-C stops it)")
    keeper = KeeperClient(quiet=False)
    try:
        return keeper.start(argv, env=env).wait(lambda: None).code
    except KeyboardInterrupt:
        return 0
    finally:
        keeper.close()


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as asking:
        asking.settimeout(0.5)
        if asking.connect_ex((host, port)) == 0:
            return False
    with socket.socket(family) as binding:
        # As servers do, so that connections that are still closing do not count.
        binding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            binding.bind((host, port))
        except OSError:
            return False
    return True
