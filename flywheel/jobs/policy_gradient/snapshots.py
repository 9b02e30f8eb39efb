"""What a policy in training is called: its version to be, and after how many updates."""

from collections.abc import Mapping
from typing import Any

from flywheel.types import PolicyRef


def snapshot(args: Mapping[str, Any], update: int) -> PolicyRef:
    """The policy after `update` updates; `args` are those of the stage `grpo`."""
    return PolicyRef(f"{args['version']}@{update}", args["out"], args["init"]["version"])
