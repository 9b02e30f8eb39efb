"""What can be chosen about a sandboxed desktop."""

from dataclasses import dataclass, field
from pathlib import Path

from flywheel.envs.server.places import desktops_root, guest_python
from flywheel.errors import ConfigError

GUEST = Path(__file__).parents[2] / "guest"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class XvfbOptions:
    """One desktop. Sizes are bytes, times seconds.

    `run_root` is where its session folder is made, and removed with it. `memory_bytes`, `pids` and a fair share of the
    CPU are enforced by cgroups where one can be written. Elsewhere `pids` is a resource limit of the sandbox and
    `memory_bytes` one of each process. `pids` counts threads; Chromium alone takes about 200. `tmpfs_bytes` caps the
    home folder, and /tmp and /dev/shm likewise; what is in them counts as memory. `apps` narrows what is offered as
    installed; None offers whatever the host has.
    """

    screen: tuple[int, int] = (1920, 1080)
    run_root: Path = field(default_factory=lambda: desktops_root() / "run" / "desktops")
    memory_bytes: int = 2048 * MIB
    pids: int = 1024
    tmpfs_bytes: int = 512 * MIB
    guest: Path = GUEST
    guest_python: Path = field(default_factory=guest_python)
    apps: frozenset[str] | None = None
    boot_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        limits = (*self.screen, self.memory_bytes, self.pids, self.tmpfs_bytes, self.boot_seconds)
        if len(self.screen) != 2 or min(limits) <= 0:
            raise ConfigError(
                f"a desktop needs a screen of width and height and positive limits, not screen={self.screen}, "
                f"memory_bytes={self.memory_bytes}, pids={self.pids}, tmpfs_bytes={self.tmpfs_bytes}, "
                f"boot_seconds={self.boot_seconds}."
            )
