import json
from pathlib import Path

from asset_stages.made_up import note, publish, skill_of
from flywheel.types import PolicyRef


def run(config, args, progress):
    note(config, "evaluate", args)
    content = publish(config, args, PolicyRef(**args["policy"]), skill_of(args["policy"]), 20)
    Path(args["report"]).parent.mkdir(parents=True, exist_ok=True)
    Path(args["report"]).write_text(json.dumps(content))
    return content
