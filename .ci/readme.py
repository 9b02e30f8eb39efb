"""Runs every `flywheel` command and Python example of the README as it stands there, beside a home that a demo made.

    python .ci/readme.py HOME

Commands of `make` are run by CI itself.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv" / "bin"


def examples(readme: str) -> list[list[str]]:
    """One argument vector for each example, in the order of the page."""
    found: list[list[str]] = []
    for language, block in re.findall(r"^```(bash|python)\n(.*?)^```", readme, re.DOTALL | re.MULTILINE):
        if language == "python":
            found.append([str(BIN / "python"), "-c", block])
        elif "flywheel " in block:
            found.append(["bash", "-euo", "pipefail", "-c", block])
    return found


def main(home: Path) -> int:
    found = examples((ROOT / "README.md").read_text())
    with tempfile.TemporaryDirectory() as folder:
        # Examples name no home: the default is `.flywheel` where they are run.
        (Path(folder) / ".flywheel").symlink_to(home.resolve())
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        for command in found:
            print(f"== {command[-1].strip()}", flush=True)
            subprocess.run(command, cwd=folder, env=environment, check=True)
    return 0 if len(found) >= 3 else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
