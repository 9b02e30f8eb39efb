"""Action spaces by name and by stored id."""

import pytest

from flywheel.actions.registry import action_space
from flywheel.errors import ConfigError
from flywheel.sections import PromptConfig


@pytest.mark.parametrize("name", ["computer_use", "pyautogui", "sendkey"])
def test_by_name_and_by_id(name):
    space = action_space(name)
    assert space.name == name
    assert space.id == f"{name}/{space.version}"
    assert action_space(space.id) is space


def test_every_space_of_the_configuration_exists():
    (names,) = (field.annotation.__args__ for key, field in PromptConfig.model_fields.items() if key == "action_space")
    assert [action_space(name).name for name in names] == list(names)


@pytest.mark.parametrize("name", ["", "computer", "computer_use/2", "computer_use/", "sendkey/1/1", "/1"])
def test_unknown_names_and_versions_are_refused(name):
    with pytest.raises(ConfigError, match=r"take one of computer_use/1, pyautogui/1, sendkey/1\.$"):
        action_space(name)
