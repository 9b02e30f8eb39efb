"""python -m guest [--host 127.0.0.1] [--port 5000]: the server inside a desktop.

It runs under the guest's own Python and imports nothing of flywheel outside its folder, by relative imports, because
the folder is called `guest` there. Whoever reaches the port owns the desktop, so it listens on loopback only.
"""

import argparse
import ipaddress
import logging

import uvicorn

from .app import build_app
from .desktop import Desktop


def main() -> None:
    parser = argparse.ArgumentParser(prog="guest", description="The server inside a desktop.")
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--display", default=None, help="X display; default: $DISPLAY, else :0")
    options = parser.parse_args()
    if not _loopback(options.host):
        parser.error(f"The guest server listens on loopback only, not on {options.host}; forward a port to it.")
    logging.getLogger("multipart").setLevel(logging.WARNING)
    uvicorn.run(
        build_app(Desktop.open(options.display)),
        host=options.host,
        port=options.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
    )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    main()
