"""Who answers for a policy that plays: the model in this process, or an sglang server that is handed its weights."""

import uuid
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from flywheel.chat import Chat
from flywheel.config import Config
from flywheel.modeling.policy import load_policy, make_chat
from flywheel.modeling.processor import load_processor
from flywheel.rollout.agents.base import Agent
from flywheel.rollout.agents.local import LocalAgent
from flywheel.rollout.agents.sglang import SglangAgent, load_weights
from flywheel.trainers.checkpoints import handed_over, save_policy
from flywheel.types import PolicyRef


class Engine(Protocol):
    """`forks` says whether workers of their own process may play with it."""

    forks: bool
    chat: Chat

    @property
    def model(self) -> Any:
        """The weights, for a trainer."""
        ...

    def share(self) -> None:
        """Called once, before workers are forked."""
        ...

    def take(self, policy: PolicyRef) -> str:
        """Answer with the present weights under this name; what an agent of them must be given."""
        ...

    def agent(self, policy: PolicyRef, mark: str) -> Agent:
        """An agent of those weights, in a worker."""
        ...


class LocalEngine:
    """The model in this process. Workers share its weights, so what a trainer writes is what is sampled from next."""

    def __init__(self, config: Config, policy: PolicyRef) -> None:
        self.model, self.chat = load_policy(config, policy)
        self.forks = bool(self.model.device.type == "cpu")

    def share(self) -> None:
        self.model.share_memory()

    def take(self, policy: PolicyRef) -> str:
        return ""

    def agent(self, policy: PolicyRef, mark: str) -> Agent:
        return LocalAgent(self.model, self.chat, policy)


class SglangEngine:
    """A server that reads weights from a folder: that of the policy, or one that is saved for it while a trainer has
    the model. Workers need no weights, and the model is loaded only where a trainer asks for it.
    """

    forks = True

    def __init__(self, config: Config, policy: PolicyRef) -> None:
        self._config, self._policy = config, policy
        self.chat = make_chat(config, load_processor(policy.uri))
        self._trained = False

    @cached_property
    def model(self) -> Any:
        self._trained = True
        return load_policy(self._config, self._policy)[0]

    def share(self) -> None: ...

    def take(self, policy: PolicyRef) -> str:
        folder = Path(self._policy.uri)
        if self._trained:
            folder = handed_over(Path(policy.uri))
            save_policy(self.model, self.chat.processor, policy, folder)
        mark = f"{policy.version} {uuid.uuid4().hex}"
        load_weights(self._config.sglang, folder, mark)
        return mark

    def agent(self, policy: PolicyRef, mark: str) -> Agent:
        return SglangAgent(self._config.sglang, self.chat, policy, mark)


def make_engine(config: Config, policy: PolicyRef) -> Engine:
    """The configured kind (`rollout.engine`)."""
    return SglangEngine(config, policy) if config.rollout.engine == "sglang" else LocalEngine(config, policy)
