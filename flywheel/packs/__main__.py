"""python -m flywheel.packs FOLDER: write the offline pack as task files, for any harness that reads OSWorld's."""

import argparse
from pathlib import Path

from flywheel.packs.offline.pack import offline_pack, write_pack


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m flywheel.packs", description="Write the offline task pack.")
    parser.add_argument("folder", type=Path, help="files go to FOLDER/<application>/<id>.json")
    folder = parser.parse_args().folder
    tasks = offline_pack()
    write_pack(tasks, folder)
    print(f"{len(tasks)} tasks in {folder}")


if __name__ == "__main__":
    main()
