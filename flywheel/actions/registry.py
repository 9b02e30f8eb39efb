"""Action spaces by name. Trajectories store `name/version`; asking for another version than the one here is refused."""

from flywheel.actions.base import ActionSpace
from flywheel.actions.computer_use import ComputerUse
from flywheel.actions.pyautogui import PyAutoGUI
from flywheel.actions.sendkey import SendKey
from flywheel.errors import ConfigError

_SPACES: dict[str, ActionSpace] = {space.name: space for space in (ComputerUse(), PyAutoGUI(), SendKey())}


def action_space(name_or_id: str) -> ActionSpace:
    """The space called `computer_use` or `computer_use/1`; raises `ConfigError`. Spaces hold no state."""
    space = _SPACES.get(name_or_id.partition("/")[0])
    if space is None or name_or_id not in (space.name, space.id):
        known = ", ".join(each.id for each in _SPACES.values())
        raise ConfigError(f"There is no action space '{name_or_id}'; take one of {known}.")
    return space
