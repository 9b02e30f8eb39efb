"""Every knob, flat and free of Dagster. Profiles hold values only; an unknown key is refused with the nearest name.

`load_config("embedded", ["sft.lr=1e-3"])` reads `profiles/embedded.yaml` over the defaults below and then the
settings. A profile may also be the path of a YAML file of the user's own.
"""

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field, ValidationError

from flywheel.errors import ConfigError
from flywheel.sections import (
    EnvConfig,
    EvalConfig,
    FlywheelConfig,
    HostedConfig,
    JudgeConfig,
    ModelConfig,
    PromptConfig,
    RlConfig,
    RolloutConfig,
    Section,
    SftConfig,
    SglangConfig,
    StoreConfig,
    TasksConfig,
    TrackingConfig,
)

PROFILE_DIR = Path(__file__).parent / "profiles"


class Config(Section):
    """Everything that one experiment depends on."""

    experiment: str = Field(
        "default", pattern=r"^[a-z0-9][a-z0-9._-]*$", description="outermost key of all that is made"
    )
    seed: int = Field(0, description="every random choice derives from it")
    home: str = Field(".flywheel", description="folder of store, checkpoints, datasets and reports")
    model: ModelConfig = ModelConfig()
    prompt: PromptConfig = PromptConfig()
    env: EnvConfig = EnvConfig()
    tasks: TasksConfig = TasksConfig()
    sft: SftConfig = SftConfig()
    rollout: RolloutConfig = RolloutConfig()
    sglang: SglangConfig = SglangConfig()
    hosted: HostedConfig = HostedConfig()
    judge: JudgeConfig = JudgeConfig()
    flywheel: FlywheelConfig = FlywheelConfig()
    rl: RlConfig = RlConfig()
    eval: EvalConfig = EvalConfig()
    tracking: TrackingConfig = TrackingConfig()
    store: StoreConfig = StoreConfig()

    @property
    def home_path(self) -> Path:
        return Path(self.home).expanduser().absolute()

    @property
    def store_root(self) -> Path:
        return self.home_path / "store"

    @property
    def experiment_dir(self) -> Path:
        """Checkpoints, sets and reports of this experiment."""
        return self.home_path / "experiments" / self.experiment

    @property
    def tracking_uri(self) -> str:
        return self.tracking.uri or f"sqlite:///{self.home_path / 'mlflow.db'}"


def profile_names() -> list[str]:
    """Profiles that ship with the package."""
    return sorted(path.stem for path in PROFILE_DIR.glob("*.yaml"))


def known_keys(section: type[BaseModel] = Config, prefix: str = "") -> dict[str, Any]:
    """Dotted name -> field of every leaf knob."""
    keys: dict[str, Any] = {}
    for name, info in section.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            keys |= known_keys(info.annotation, f"{prefix}{name}.")
        else:
            keys[prefix + name] = info
    return keys


def load_config(profile: str = "embedded", settings: list[str] | tuple[str, ...] = ()) -> Config:
    """Defaults, then the profile, then `key=value` settings. Raises `ConfigError`."""
    values = _read_profile(profile)
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator:
            raise ConfigError(f"Setting '{setting}' is not of the form key=value; write for example sft.lr=1e-3.")
        _refuse_unknown(key, "setting")
        try:
            values[key] = _plain(yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise ConfigError(f"Setting '{setting}' has a value that is not YAML; quote it.") from error
    try:
        return Config.model_validate(_nest(values))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{key} cannot be {first['input']!r}: {first['msg'].lower()}.") from error


def _read_profile(profile: str) -> dict[str, Any]:
    path = Path(profile) if profile.endswith((".yaml", ".yml")) else PROFILE_DIR / f"{profile}.yaml"
    if not path.is_file():
        names = ", ".join(profile_names())
        raise ConfigError(f"There is no profile '{profile}'; take one of {names}, or the path of a .yaml file.")
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {str(error).splitlines()[0]}.") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} must hold a mapping of sections, not a {type(loaded).__name__}.")
    values = _flatten(loaded)
    for key in values:
        _refuse_unknown(key, str(path))
    return values


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            leaves |= _flatten(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = _plain(value)
    return leaves


def _nest(leaves: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for dotted, value in leaves.items():
        *parents, name = dotted.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def _plain(value: Any) -> Any:
    """YAML reads `1e-3` as text; knobs mean a number."""
    if isinstance(value, str):
        try:
            return float(value) if "e" in value.lower() and not value.isalpha() else value
        except ValueError:
            return value
    return value


def _refuse_unknown(key: str, where: str) -> None:
    keys = known_keys()
    if key in keys:
        return
    by_name = {name.rsplit(".", 1)[-1]: name for name in keys}
    near = difflib.get_close_matches(key, keys, 1, 0.5)
    near = near or [by_name[n] for n in difflib.get_close_matches(key.rsplit(".", 1)[-1], by_name, 1, 0.5)]
    hint = f"did you mean {near[0]}?" if near else "see docs/configuration.md."
    raise ConfigError(f"Unknown key '{key}' in {where}; {hint}")
