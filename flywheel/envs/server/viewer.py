"""A page that shows one desktop: noVNC, carried by a websockify of its own, on this machine's loopback alone.

What is shown cannot be touched: the screen server behind it takes no input, and the page sends none. The address holds
a secret, without which the port shows nothing, because any page of a browser may talk to any port of its own machine.
"""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlencode

from flywheel.processes import end_family

WEB = Path("/usr/share/novnc")
_PAGE = "vnc.html"


def why_no_page() -> str | None:
    """None where pages can be shown, else a sentence."""
    there = {
        "novnc": (WEB / _PAGE).exists(),
        "util-linux": shutil.which("setpriv") is not None,
        "websockify": shutil.which("websockify") is not None,
    }
    if lacking := [package for package, found in there.items() if not found]:
        return f"The host of the env server cannot show desktops; run `apt-get install {' '.join(lacking)}` there."
    return None


class Viewer:
    """One page for one screen server. Make it in a thread that lives on: the kernel ends websockify with that thread.

    Args:
        port: of the screen server, on loopback.
        tokens: file for the secret; removed by `close`.

    Raises `OSError` when there is no port or no process to be had.
    """

    def __init__(self, port: int, tokens: Path) -> None:
        self.port = port
        self._tokens = tokens
        token = secrets.token_hex(16)
        tokens.touch(0o600)
        tokens.write_text(f"{token}: 127.0.0.1:{port}\n")
        # Bound here and handed over, so that nobody else takes the port and the page can be asked for at once.
        with socket.create_server(("127.0.0.1", 0)) as listening:
            shown = {"autoconnect": "true", "view_only": "true", "resize": "scale", "path": f"websockify?token={token}"}
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/{_PAGE}?{urlencode(shown)}"
            self._process = self._spawn(listening)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of websockify, which leads a session: one more process for every browser that looks."""
        return self._process.pid

    def close(self) -> None:
        """End websockify and every connection; returns when the port is closed. Safe to call twice."""
        end_family(self._process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._tokens.unlink(missing_ok=True)

    def _spawn(self, listening: socket.socket) -> subprocess.Popen[bytes]:
        # Its log would hold the address with the secret.
        command = ["setpriv", "--pdeathsig", "KILL", "--", "websockify", "--inetd", "--web", str(WEB)]
        command += ["--token-plugin", "TokenFile", "--token-source", str(self._tokens)]
        return subprocess.Popen(
            command,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            stdin=listening.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
