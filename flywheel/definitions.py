"""What `dagster dev` loads: the profile that FLYWHEEL_PROFILE names, with the settings in FLYWHEEL_SET ("a=b;c=d")."""

import os

from flywheel.assets.catalogue import build_definitions
from flywheel.config import load_config

PROFILE = "FLYWHEEL_PROFILE"
SETTINGS = "FLYWHEEL_SET"

defs = build_definitions(
    load_config(os.environ.get(PROFILE, "embedded"), [s for s in os.environ.get(SETTINGS, "").split(";") if s])
)
