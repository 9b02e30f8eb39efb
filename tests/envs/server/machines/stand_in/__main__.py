"""A guest server that only runs commands: what the machine's tests need of one, in the standard library."""

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer({"ok": True, "display": ":0", "version": "stand-in"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            ended = subprocess.run(
                asked["command"],
                shell=isinstance(asked["command"], str),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=20,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self._answer({"output": "", "error": str(error), "returncode": -1})
            return
        self._answer({"output": ended.stdout, "error": ended.stderr, "returncode": ended.returncode})

    def _answer(self, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


ThreadingHTTPServer((sys.argv[2], int(sys.argv[4])), Handler).serve_forever()
