"""`python -m flywheel.jobs STAGE RUN_DIR`: one stage in this process, from the spec in its run folder."""

import sys

from flywheel.jobs.base import STAGES, main

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python -m flywheel.jobs STAGE RUN_DIR (with its spec.json); stages: {', '.join(STAGES)}")
    sys.exit(main(sys.argv[1], sys.argv[2]))
