"""The command that builds the sandbox and runs `boot.py` in it. Nothing is executed here.

Four steps, one process id (each `exec`s the next), so that bubblewrap's die-with-parent watches the worker itself:

1. `sh` enters the cgroups.
2. As root only: `unshare` takes a mount namespace of its own and binds what the sandbox needs under /mnt, because the
   desktop's uid may not walk through root's home; then `setpriv` becomes that uid for good.
3. `unshare --user` allows one more mount namespace and no other: bubblewrap's. Programs inside may still make
   user namespaces (Chromium's own sandbox is built of them) but cannot mount anything in them.
4. `bwrap` with every namespace of its own, no capability, no new privilege, and only the mounts named below.

What this does not stop:
- The kernel is the wall. System calls that a desktop has no use for are refused (`syscalls.py`), where the kernel has
  seccomp and the processor is x86_64 or aarch64; a bug in the others is a way out.
- Without a writable cgroup, memory is limited per process and tmpfs only, and CPU not at all; a desktop can then take
  the host's memory with many processes. Where /proc/sys is read-only, step 3's limit is left out, and such a desktop
  can mount tmpfs of any size as well.
- Unprivileged, all desktops and the worker are one user: the kernel's per-user counts (keys, inotify watches) are
  shared, and the worker's supplementary groups stay in force on what is mounted, which is readable by all anyway.
- /proc/cpuinfo, /proc/meminfo and the names of mounted host folders can be read inside.
- A checker that asks the guest believes the guest: an agent is the same user as the guest server, and can replace it.
- The four ports on the host's loopback have no password; whoever has an account on the host can use them.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from flywheel.envs.server.machines.xvfb.files import ETC, GENERATED, HOSTNAME, VAR
from flywheel.envs.server.machines.xvfb.options import MIB, XvfbOptions

CHROMIUM = Path("/usr/lib/chromium")
STAGE = Path("/mnt")

_ENTER = 'while [ "$1" != -- ]; do echo 0 > "$1"; shift; done; shift; exec "$@"'
_BIND = (
    "set -e; mount -t tmpfs -o mode=755,size=1m flywheel {stage}; umask 022; "
    'while [ "$1" != -- ]; do mkdir -p "$2"; mount --bind "$1" "$2"; shift 2; done; shift; exec "$@"'
)
_NO_MOUNTS = 'echo 1 2>/dev/null > /proc/sys/user/max_mnt_namespaces || :; exec "$@"'

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/games",
    "HOME": "/home/user",
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "DISPLAY": ":0",
    "XAUTHORITY": "/home/user/.Xauthority",
    "XDG_RUNTIME_DIR": "/run/user/1000",
    "XDG_SESSION_TYPE": "x11",
    "XDG_CURRENT_DESKTOP": "GNOME",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",
    "GTK_MODULES": "gail:atk-bridge",
    "QT_ACCESSIBILITY": "1",
    "SAL_USE_VCLPLUGIN": "gtk3",
    "GIO_USE_VFS": "local",
    "PYTHONPATH": "/opt/flywheel/lib",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True, slots=True)
class Sources:
    """Host folders that the sandbox mounts read-only."""

    session: Path
    guest: Path
    venv: Path | None

    def staged(self, stage: Path) -> "Sources":
        """The same under the folder that step 2 binds them to."""
        return Sources(stage / "session", stage / "guest", self.venv and stage / "python")

    def pairs(self, stage: Path) -> list[str]:
        there = self.staged(stage)
        both = [(self.session, there.session), (self.guest, there.guest), (self.venv, there.venv)]
        return [str(path) for pair in both if pair[0] for path in pair]


def venv_of(python: Path) -> Path | None:
    """The virtual environment of a Python, or None for the system's own."""
    folder = python.parent.parent
    return folder if (folder / "pyvenv.cfg").exists() else None


@dataclass(frozen=True, slots=True)
class Box:
    """One sandbox to be; `name` is its session's, `uid` the host user it runs as, None for the worker's own."""

    options: XvfbOptions
    sources: Sources
    name: str
    uid: int | None

    def command(
        self, joins: tuple[str, ...], info_fd: int, arguments_fd: int, filter_fd: int | None, boot: str
    ) -> list[str]:
        """The command line; its last word, `boot`, is the JSON for `boot.py`. `joins`: cgroups to enter."""
        words = ["/bin/sh", "-c", _ENTER, "sh", *joins, "--"]
        if self.uid is not None:
            words += ["unshare", "--mount", "--propagation", "private", "--"]
            words += ["/bin/sh", "-c", _BIND.format(stage=STAGE), "sh", *self.sources.pairs(STAGE / self.name), "--"]
            words += [
                "setpriv",
                f"--reuid={self.uid}",
                f"--regid={self.uid}",
                "--clear-groups",
                "--inh-caps=-all",
                "--",
            ]
        words += ["unshare", "--user", "--map-root-user", "--", "/bin/sh", "-c", _NO_MOUNTS, "sh"]
        words += ["bwrap", "--info-fd", str(info_fd), "--args", str(arguments_fd)]
        words += ["--seccomp", str(filter_fd)] if filter_fd is not None else []
        words += ["--"]
        python = "/opt/flywheel/python/bin/python" if self.sources.venv else str(self.options.guest_python)
        return [*words, python, "-I", "-S", "/opt/flywheel/boot.py", boot]

    def arguments(self) -> bytes:
        """bubblewrap's, each ended by a zero byte. Apart from the command line, which `ps` shows inside."""
        sources = self.sources if self.uid is None else self.sources.staged(STAGE / self.name)
        return b"".join(word.encode() + b"\0" for word in _bwrap(self.options, sources))


def _bwrap(options: XvfbOptions, sources: Sources) -> list[str]:
    """The order of mounts matters."""
    words = ["--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]
    words += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--hostname", HOSTNAME, "--die-with-parent", "--new-session", "--clearenv"]
    for key, value in ENVIRONMENT.items():
        words += ["--setenv", key, value]
    words += [*_system(), *_etc(sources.session), "--proc", "/proc", "--dev", "/dev"]
    # bubblewrap's / and /dev are tmpfs without a limit, so both end up read-only: the four here are all that can grow.
    for path, size, mode in (
        ("/dev/shm", options.tmpfs_bytes, "1777"),
        ("/tmp", options.tmpfs_bytes, "1777"),
        ("/home/user", options.tmpfs_bytes, "0755"),
        ("/run/user/1000", 32 * MIB, "0700"),
    ):
        words += ["--perms", mode, "--size", str(size), "--tmpfs", path]
    words += ["--symlink", "/tmp", "/var/tmp", "--symlink", "/run", "/var/run", "--dir", "/mnt", "--dir", "/media"]
    words += _ours(sources)
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/home/user"]


def _system() -> list[str]:
    """/usr and the links into it, and the parts of /var that Debian's programs read."""
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    for name in VAR:
        words += ["--ro-bind-try", f"/var/{name}", f"/var/{name}"]
    return words


def _etc(session: Path) -> list[str]:
    words = ["--perms", "0755", "--dir", "/etc"]
    for name in ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in GENERATED:
        words += ["--ro-bind", str(session / "etc" / name), f"/etc/{name}"]
    return words


def _ours(sources: Sources) -> list[str]:
    """Shims over the host's /usr/local, the guest server, its Python, and Chromium under Chrome's name."""
    words = ["--size", str(MIB), "--tmpfs", "/usr/local", "--ro-bind", str(sources.session / "bin"), "/usr/local/bin"]
    words += ["--remount-ro", "/usr/local"]
    words += ["--ro-bind", str(sources.session / "home"), "/opt/flywheel/home"]
    words += ["--ro-bind", str(sources.session / "boot.py"), "/opt/flywheel/boot.py"]
    words += ["--ro-bind", str(sources.guest), "/opt/flywheel/lib/guest"]
    if sources.venv:
        words += ["--ro-bind", str(sources.venv), "/opt/flywheel/python"]
    if (CHROMIUM / "chromium").exists():
        # Chromium looks for its files beside its binary, so its whole folder appears, the binary renamed.
        for path in sorted(CHROMIUM.iterdir()):
            name = "chrome" if path.name == "chromium" else path.name
            words += ["--ro-bind", str(path), f"/opt/google/chrome/{name}"]
    return words
