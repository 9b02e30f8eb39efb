"""What a hostile agent would do, and that it gets nowhere: each takes the attacked desktop and its neighbour.

Run by test_hostile.py, and as a program, by another user, by test_unprivileged.py. The attacked desktop is reverted
after each.
"""

import os
import platform
import socket
import sys
import tempfile
import time
import urllib.error
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from flywheel.envs.server.machines.xvfb.options import MIB
from flywheel.envs.server.machines.xvfb.session import PREFIX
from flywheel.envs.server.machines.xvfb.syscalls import DENIED, PROCESSORS, seccomp_filter
from tests.envs.server.machines.desks import GUEST_PYTHON, SMALL, Desk, booted

SECRET = "only-the-worker-may-know-this"
Attack = Callable[[Desk, Desk], None]


def delete_everything(desk: Desk, neighbour: Desk) -> None:
    desk.run("echo mine > ~/Desktop/file")
    desk.run("timeout 1.5 rm -rf --no-preserve-root / 2>/dev/null")  # longer, and it only meets more of read-only /usr
    assert desk.run("echo ~/* ~/.[A-Z]*").output.split() == ["/home/user/*", "/home/user/.[A-Z]*"]
    assert desk.run("test -x /usr/bin/python3").code == 0
    assert "gone" in str(desk.health())


def fork_bomb(desk: Desk, neighbour: Desk) -> None:
    with suppress(OSError, HTTPException):  # the guest server may find no process for the answer
        desk.run("bash -c ':(){ :|:& };:' >/dev/null 2>&1 & sleep 1")
    for _ in range(20):
        if (said := desk.health()) is not None:
            break
        time.sleep(0.2)
    assert said is not None
    assert "of at most 150 processes" in said or "no new process" in said, said
    started = time.monotonic()
    assert neighbour.run("echo still here").output == "still here\n"
    assert time.monotonic() - started < 5


def count_of_processes(desk: Desk, neighbour: Desk) -> None:
    said = desk.python(
        "import os, time\n"
        "made = []\n"
        "while len(made) < 9999:\n"
        "  try: made.append(os.fork())\n"
        "  except BlockingIOError: break\n"
        "  if made[-1] == 0: time.sleep(60); os._exit(0)\n"
        "print(len(made))\n"
        "for pid in made: os.kill(pid, 9)\n"
    )
    assert 50 < int(said.output) < SMALL.pids


def kill_everything(desk: Desk, neighbour: Desk) -> None:
    with suppress(OSError, HTTPException):
        desk.run("kill -9 -1")
    time.sleep(0.2)
    assert "has ended" in str(desk.health())
    started = time.monotonic()
    desk.revert()
    assert time.monotonic() - started < 10
    assert desk.health() is None


def kill_one(desk: Desk, neighbour: Desk) -> None:
    desk.run("pkill -9 Xvfb")
    time.sleep(0.2)
    assert "Xvfb has ended" in str(desk.health())


def fill_the_disk(desk: Desk, neighbour: Desk) -> None:
    before = os.statvfs("/").f_bavail * os.statvfs("/").f_frsize
    for folder in ("$HOME", "/tmp", "/dev/shm", "/dev", "/", "/run", "/var", "/usr/local", "/run/user/1000"):
        said = desk.run(f"dd if=/dev/zero of={folder}/big bs=1M count=200; du -m {folder}/big | cut -f1")
        assert any(why in said.error for why in ("No space", "Read-only", "Permission", "limit exceeded")), said
        assert int(said.output.strip() or 0) <= 32, folder
    assert "full" in str(desk.health())
    assert before - os.statvfs("/").f_bavail * os.statvfs("/").f_frsize < 256 * MIB
    assert neighbour.run("dd if=/dev/zero of=$HOME/small bs=1M count=4 && rm ~/small").code == 0


def mount_more_room(desk: Desk, neighbour: Desk) -> None:
    said = desk.run("unshare -Urm sh -c 'mount -t tmpfs none /mnt && echo mounted'")
    assert "mounted" not in said.output
    assert desk.run("unshare -Ur mount -t tmpfs none /mnt").code != 0


def take_memory(desk: Desk, neighbour: Desk) -> None:
    said = desk.python("data = bytearray(1 << 30); print(len(data))")
    assert said.code != 0
    assert said.output == ""


def read_host_files(desk: Desk, neighbour: Desk) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for place in (Path(folder), desk.options.run_root):
            Path(place, "secret").write_text(SECRET)
            Path(place, "secret").chmod(0o644)
            assert SECRET not in desk.run(f"cat {place}/secret; cat /proc/1/root{place}/secret").output
            Path(place, "secret").unlink()
    for path in ("/root", "/etc/shadow", "/etc/ssh", "/home/*/.ssh", "/var/log", "/sys/kernel", "/boot", "/srv"):
        assert desk.run(f"ls {path}").code != 0, path
    assert desk.run("ls /home").output == "user\n"
    assert desk.run("find /dev -type b").output == ""


def read_the_neighbour(desk: Desk, neighbour: Desk) -> None:
    neighbour.run(f"echo {SECRET} > ~/Desktop/secret; echo {SECRET} > /tmp/secret; echo {SECRET} > /dev/shm/secret")
    assert SECRET not in desk.run(f"grep -rs {SECRET[:-1]}[s] /home /tmp /dev/shm /run").output
    assert desk.run("ls /tmp/.X11-unix").output == "X0\n"


def read_the_workers_environment(desk: Desk, neighbour: Desk) -> None:
    os.environ["FLYWHEEL_TEST_SECRET"] = SECRET
    try:
        desk.revert()  # a desktop that was booted while the secret was there
        assert SECRET not in desk.run("cat /proc/*/environ; env").output
    finally:
        del os.environ["FLYWHEEL_TEST_SECRET"]


def see_host_processes(desk: Desk, neighbour: Desk) -> None:
    names = desk.run("cat /proc/[0-9]*/comm").output.split()
    assert len(names) < 25, names
    assert names[0] == "bwrap"
    assert desk.run("ps -eo args").output.count("boot.py") <= 2, "only its own"
    assert desk.run(f"kill -0 {os.getpid()}").code != 0 or os.getpid() < 100


def scan_host_ports(desk: Desk, neighbour: Desk) -> None:
    abstract = f"\0flywheel-test-{os.getpid()}"
    with socket.create_server(("0.0.0.0", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(abstract)
        unix.listen()
        ports = [server.getsockname()[1], neighbour.endpoints().server, desk.endpoints().server]
        hosts = ["127.0.0.1", socket.gethostbyname(socket.gethostname()), "10.0.2.2", "172.17.0.1"]
        said = desk.python(
            "import socket\n"
            f"for address in {[(host, port) for host in hosts for port in ports]}:\n"
            "  s = socket.socket(); s.settimeout(1)\n"
            "  if s.connect_ex(address) == 0: print('reached', address)\n"
            "s = socket.socket(socket.AF_UNIX)\n"
            f"if s.connect_ex({abstract!r}) == 0: print('reached the abstract socket')\n"
            "print('scanned')"
        )
    assert said.output == "scanned\n", said
    assert desk.run("ls /sys/class/net; cut -d: -f1 /proc/net/dev | tail -n +3").output.split() == ["lo"]


def reach_the_internet(desk: Desk, neighbour: Desk) -> None:
    for address in ("1.1.1.1", "8.8.8.8"):
        said = desk.python(f"import socket; socket.create_connection(({address!r}, 53), timeout=2)")
        assert "unreachable" in said.error
    assert "not known" in desk.run("getent hosts example.com; wget -T2 example.com; echo not known").output


def become_root(desk: Desk, neighbour: Desk) -> None:
    assert desk.run("su -c 'echo got root' </dev/null").output == ""
    assert desk.run("echo password | sudo -S id -u").output == "1000\n", "sudo runs the command, as the user"
    status = desk.run("grep -E '^(Cap|NoNewPrivs)' /proc/self/status").output.split("\n")
    assert {line.split()[1].strip("0") for line in status if line.startswith("Cap")} == {""}
    assert "NoNewPrivs:\t1" in status
    assert desk.run("mknod ~/disk b 8 0").code != 0
    assert desk.run("chroot / true").code != 0
    # Root of a namespace of its own: real power over nothing.
    said = desk.run(
        "unshare -Ur sh -c 'cat /etc/shadow; echo x > /etc/passwd; mknod ~/d b 8 0; echo 1 > /proc/sys/kernel/panic'"
    )
    assert said.code != 0
    assert said.output == ""


def write_read_only_places(desk: Desk, neighbour: Desk) -> None:
    places = (
        "/x /etc/x /etc/passwd /usr/x /usr/bin/x /usr/local/bin/x /opt/x /opt/flywheel/boot.py /dev/x /var/x /mnt/x"
    )
    assert desk.run(f"for p in {places}; do echo x >> $p && echo wrote $p; done 2>/dev/null").output == ""
    assert (
        desk.run(
            "for p in /proc/sys/kernel/hostname /proc/sysrq-trigger /sys/x; do echo x > $p && echo $p; done"
        ).output
        == ""
    )
    assert desk.run("mount -o remount,rw /usr; mount --bind /tmp /mnt && echo mounted").output == ""


def symlinks_out(desk: Desk, neighbour: Desk) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="secret") as file:
        file.write(SECRET)
        file.flush()
        os.chmod(file.name, 0o644)
        for target in (file.name, f"/proc/1/root{file.name}", f"/proc/1/cwd/{file.name}", "/etc/shadow"):
            desk.run(["ln", "-sfn", target, "/home/user/Desktop/result.txt"])
            assert desk.run("cat ~/Desktop/result.txt").output == "", target


def steal_the_control_socket(desk: Desk, neighbour: Desk) -> None:
    """Everything inside is one user, so an agent can take the descriptor and talk to the worker itself."""
    said = desk.python(
        "import ctypes, os, socket\n"
        "libc = ctypes.CDLL(None); there = os.pidfd_open(2)\n"
        "for fd in range(3, 40):\n"
        "  mine = libc.syscall(438, there, fd, 0)\n"  # pidfd_getfd
        "  if mine >= 0 and os.readlink(f'/proc/self/fd/{mine}').startswith('socket:'):\n"
        "    s = socket.socket(fileno=mine)\n"
        "    if s.type == socket.SOCK_SEQPACKET:\n"
        "      for n in range(200):\n"
        "        socket.send_fds(s, [b'nonsense', b'[]', b'{\"id\": %d}' % n][n % 3:][:1], [0] * (n % 5))\n"
        "      print('stolen')\n"
    )
    assert said.output == "stolen\n", said
    before = len(os.listdir("/proc/self/fd"))
    desk.health()
    with suppress(OSError, HTTPException):
        desk.run("true")
    for _ in range(50):  # the pump closes its two ends of a connection a little after the client's
        if len(os.listdir("/proc/self/fd")) <= before:
            return
        time.sleep(0.1)
    raise AssertionError("descriptors that the guest pushed were kept")


def flood_the_worker(desk: Desk, neighbour: Desk) -> None:
    """A descriptor to write to the host with would be a way to fill its disk."""
    said = desk.python(
        "import glob, os\n"
        "for path in glob.glob('/proc/[12]/fd/*'):\n"
        "  try: kind = os.readlink(path)\n"
        "  except OSError: continue\n"
        "  if kind.startswith('/') and kind != '/dev/null': print(kind)\n"
    )
    assert [line for line in said.output.split() if not line.startswith(("/proc", "/run/user", "/home"))] == []


def call_what_no_desktop_calls(desk: Desk, neighbour: Desk) -> None:
    """In a user namespace of its own, where it has every capability; without the filter half of them are answered."""
    if seccomp_filter() is None:
        return  # a limit that sandbox.py names
    kind = PROCESSORS[platform.machine()]
    numbers = [number for pair in DENIED.values() if (number := pair[kind.column]) is not None]
    program = (
        "import ctypes, errno\n"
        "call = ctypes.CDLL(None, use_errno=True).syscall\n"
        f"for number in {numbers}:\n"
        "  ctypes.set_errno(0)\n"
        "  if call(number, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.EPERM: print(number)\n"
        "print('tried')\n"
    )
    said = desk.run(["unshare", "-Ur", str(GUEST_PYTHON), "-c", program])
    assert said.output == "tried\n", said


ATTACKS: tuple[Attack, ...] = (
    delete_everything,
    fork_bomb,
    count_of_processes,
    kill_everything,
    kill_one,
    fill_the_disk,
    mount_more_room,
    take_memory,
    read_host_files,
    read_the_neighbour,
    read_the_workers_environment,
    see_host_processes,
    scan_host_ports,
    reach_the_internet,
    become_root,
    write_read_only_places,
    symlinks_out,
    steal_the_control_socket,
    flood_the_worker,
    call_what_no_desktop_calls,
)


def attempt(attack: Attack, desk: Desk, neighbour: Desk) -> None:
    """The attack, the neighbour afterwards, and the revert that heals."""
    neighbour.run("echo precious > ~/Documents/letter")
    attack(desk, neighbour)
    assert neighbour.health() is None
    assert neighbour.run("cat ~/Documents/letter").output == "precious\n"
    desk.revert()
    assert desk.health() is None
    assert desk.run("ls ~/Desktop").output == ""


def main(run_root: Path, names: list[str]) -> None:
    """Those named; prints the names of the ones that were withstood."""
    with booted(run_root) as desk, booted(run_root) as neighbour:
        for attack in (attack for attack in ATTACKS if attack.__name__ in names):
            try:
                attempt(attack, desk, neighbour)
            except (AssertionError, urllib.error.URLError) as error:
                print(f"{attack.__name__} got through: {error!r}")
                desk.revert()
            else:
                print(attack.__name__, flush=True)
    assert not list(run_root.glob(f"{PREFIX}*"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
