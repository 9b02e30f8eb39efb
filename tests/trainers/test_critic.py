"""Critics on made-up hidden states that know the answer, and on none that do."""

import copy
import math

import pytest
import torch
from torch import Tensor

from flywheel.sections import RlConfig
from flywheel.trainers.critic import Lesson, ValueCritic, VerdictCritic, explained_variance, make_critic

CPU, WIDTH = torch.device("cpu"), 8


def states(count: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Hidden states, with 0 for what others got, and returns that are linear in them."""
    generator = torch.Generator().manual_seed(seed)
    state_ND = torch.randn(count, WIDTH, generator=generator)
    state_ND[:, -1] = 0
    return state_ND, 0.5 + 0.1 * state_ND.sum(1)


def lesson(critic: ValueCritic | VerdictCritic, state_ND: Tensor, target_N: Tensor) -> Lesson:
    return Lesson(state_ND, critic.read(state_ND), target_N)


def value_critic(pretraining: int = 0) -> ValueCritic:
    return ValueCritic(WIDTH, lr=0.05, steps=20, pretraining=pretraining, device=CPU)


def test_it_learns_what_the_states_know() -> None:
    critic = value_critic()
    explained = []
    for update in range(8):
        state_ND, target_N = states(seed=update)
        explained.append(critic.fit([lesson(critic, state_ND, target_N)])["explained_variance"])
    assert explained[0] == 0
    assert explained[-1] > 0.9
    assert not critic.read(states()[0]).requires_grad


def test_it_sends_no_gradient_into_the_states() -> None:
    critic = value_critic()
    state_ND, target_N = states()
    leaf = state_ND.clone().requires_grad_()
    critic.fit([Lesson(leaf.detach(), critic.read(leaf), target_N)])
    assert leaf.grad is None


def test_a_value_moves_at_most_by_the_clip_once_it_is_relied_upon() -> None:
    """A target that is far away: without the clip the head would run after it."""
    state_ND, _ = states()
    relied, alone = value_critic(), value_critic(pretraining=9)
    for critic in (relied, alone):
        critic._steps = 400
        critic.fit([lesson(critic, state_ND, torch.full((len(state_ND),), 5.0))])
    assert float(relied.read(state_ND).mean()) < 1.5
    assert float(alone.read(state_ND).mean()) > 3


def test_pretraining_ends_when_variance_is_explained_and_flat() -> None:
    critic = value_critic(pretraining=50)
    told, trusted = [], []
    for update in range(20):
        trusted.append(critic.trusted())
        state_ND, target_N = states(seed=update)
        told.append(critic.fit([lesson(critic, state_ND, target_N)])["explained_variance"])
    first = trusted.index(True)
    assert not any(trusted[:first])
    assert all(trusted[first:])
    assert told[first - 1] >= 0.3
    assert told[first - 1] - told[first - 2] < 0.05


def test_pretraining_ends_at_its_limit_when_there_is_nothing_to_explain() -> None:
    critic = value_critic(pretraining=3)
    trusted = []
    for update in range(5):
        state_ND, _ = states(seed=update)
        critic.fit([lesson(critic, state_ND, torch.randn(len(state_ND)))])
        trusted.append(critic.trusted())
    assert trusted == [False, False, False, True, True]


def test_a_verdict_is_the_more_doubtful_of_two() -> None:
    critic = VerdictCritic(WIDTH, lr=0.05, steps=50, device=CPU)
    state_ND, _ = states()
    target_N = (state_ND[:, 0] > 0).float()
    before_N = critic.read(state_ND)
    assert float(before_N.max()) < 0.5
    for _ in range(4):
        figures = critic.fit([lesson(critic, state_ND, target_N)])
    assert figures["value_accuracy"] > 0.95
    assert ((critic.read(state_ND) >= 0) & (critic.read(state_ND) <= 1)).all()
    assert critic.trusted()


@pytest.mark.parametrize("kind", ["value", "pretrained value", "verdict"])
def test_a_critic_goes_on_from_its_state(kind: str) -> None:
    config = RlConfig(critic_lr=0.05, value_pretraining=5)
    state_ND, target_N = states()
    width = WIDTH if kind == "verdict" else WIDTH - 1
    one, other = (make_critic(kind, width, config, CPU) for _ in range(2))  # type: ignore[arg-type]
    target_N = (target_N > 0.5).float()
    one.fit([Lesson(state_ND, one.read(state_ND), target_N)])
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for critic in (one, other):
        critic.fit([Lesson(state_ND, critic.read(state_ND), target_N)])
    assert torch.equal(one.read(state_ND), other.read(state_ND))
    assert one.trusted() == other.trusted()


def test_explained_variance() -> None:
    target_N = torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert explained_variance(target_N, target_N) == 1
    assert explained_variance(target_N + 7, target_N) == 1
    assert explained_variance(torch.zeros(4), target_N) == 0
    assert explained_variance(1 - target_N, target_N) == pytest.approx(-3)
    assert not math.isnan(explained_variance(target_N, torch.ones(4)))
