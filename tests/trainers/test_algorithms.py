"""The table: every entry works, in one piece and in chunks, whatever the padding holds."""

import math

import pytest
import torch
from torch import Tensor

from flywheel.errors import ConfigError, TrainingError
from flywheel.sections import RlConfig
from flywheel.trainers.aggregation import Denominators
from flywheel.trainers.algorithms import ALGORITHMS, TABLE, Algorithm, algorithm, configured
from flywheel.trainers.corrections import importance_weights, rejection_mask
from flywheel.trainers.policy_loss import policy_loss
from flywheel.trainers.steps import Steps

ROWS, TOKENS = 8, 7
GROUP = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
REWARD = torch.tensor([1, 0, 1, 0, 0, 1, 1, 0], dtype=torch.float64)
ALL = torch.ones(ROWS, dtype=torch.bool)
STEPS = Steps(REWARD, REWARD > 0, ALL, GROUP, torch.arange(ROWS), ALL, torch.zeros(ROWS).double(), (None,) * ROWS)
"""Each row a trajectory of one step."""


class Update:
    """One update's tensors: sampled, old and reference logprobs, a mask with gaps and an empty row."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (ROWS, TOKENS)
        self.old = -torch.rand(shape, generator=generator, dtype=torch.float64) * 3 - 0.05
        self.logp = (self.old + 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)).clamp(max=-1e-3)
        self.ref = self.old + 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
        self.rollout = self.old + 0.1 * torch.randn(shape, generator=generator, dtype=torch.float64)
        self.mask = torch.rand(shape, generator=generator) > 0.3
        self.mask[3] = False

    def advantage(self, chosen: Algorithm) -> Tensor:
        """(B, T), from rows as the algorithm takes them: trajectories, steps, or tokens with a critic's values."""
        if chosen.unit == "token":
            reward_BT = torch.zeros_like(self.logp)
            reward_BT[torch.arange(ROWS), (self.mask * torch.arange(TOKENS)).argmax(-1)] = REWARD
            values_BT = torch.rand(self.mask.shape, generator=torch.Generator().manual_seed(1)).double()
            return torch.where(self.mask, chosen.advantage(reward_BT, values_BT, self.mask)[0], 0.0)
        if chosen.unit == "step":
            return chosen.advantage(STEPS)[:, None].expand(ROWS, TOKENS)
        return chosen.advantage(REWARD, GROUP, self.mask.sum(-1))[:, None].expand(ROWS, TOKENS)


@pytest.fixture(params=[entry for entry in TABLE if entry.objective == "policy"], ids=lambda entry: entry.name)
def entry(request: pytest.FixtureRequest) -> Algorithm:
    return request.param


def loss_and_gradient(
    update: Update, chosen: Algorithm, rows: slice = slice(None), **options: object
) -> tuple[float, Tensor]:
    logp = update.logp.clone().requires_grad_()
    advantage = update.advantage(chosen)
    loss, metrics = policy_loss(
        chosen, logp[rows], update.old[rows], advantage[rows], update.mask[rows],
        ref_logp_BT=update.ref[rows], kl=0.1, **options,
    )  # fmt: skip
    assert all(math.isfinite(figure) for figure in metrics.values())
    return float(loss.detach()), torch.autograd.grad(loss, logp)[0]


def test_chunks_add_up_to_the_whole(entry: Algorithm) -> None:
    update = Update()
    counts = Denominators.of(update.mask)
    whole, whole_gradient = loss_and_gradient(update, entry)
    chunks = [loss_and_gradient(update, entry, slice(i, i + 2), denominators=counts) for i in range(0, ROWS, 2)]
    assert sum(loss for loss, _ in chunks) == pytest.approx(whole, rel=1e-12)
    torch.testing.assert_close(sum(gradient for _, gradient in chunks), whole_gradient, rtol=1e-12, atol=1e-14)


def test_the_gradient_raises_what_did_well_and_stays_inside_the_mask(entry: Algorithm) -> None:
    update = Update()
    update.logp = update.old.clone()
    logp = update.logp.clone().requires_grad_()
    loss, metrics = policy_loss(entry, logp, update.old, update.advantage(entry), update.mask)
    gradient = torch.autograd.grad(loss, logp)[0]
    assert not gradient[~update.mask].any()
    advantage = update.advantage(entry)
    pushed = update.mask & (advantage != 0)
    assert (torch.sign(gradient[pushed]) == -torch.sign(advantage[pushed])).all()
    assert metrics["ratio_mean"] == pytest.approx(1)
    assert metrics["approx_kl"] == pytest.approx(0, abs=1e-12)
    assert metrics["tokens"] == int(update.mask.sum())


def test_padding_may_hold_anything(entry: Algorithm) -> None:
    clean, dirty = Update(), Update()
    for name in ("logp", "old", "ref"):
        setattr(dirty, name, torch.where(dirty.mask, getattr(dirty, name), float("nan")))
    loss, gradient = loss_and_gradient(clean, entry)
    dirty_loss, dirty_gradient = loss_and_gradient(dirty, entry)
    assert dirty_loss == loss
    torch.testing.assert_close(dirty_gradient[clean.mask], gradient[clean.mask])


def test_weights_scale_the_policy_term_and_rejection_lowers_it(entry: Algorithm) -> None:
    update = Update()
    logp, advantage = update.logp, update.advantage(entry)
    counts, row_tokens = Denominators.of(update.mask), update.mask.sum(-1)

    def loss(mask: Tensor, weight: Tensor | None) -> float:
        return policy_loss(
            entry, logp, update.old, advantage, mask, weight_BT=weight, denominators=counts, row_tokens_B=row_tokens
        )[0].item()

    plain = loss(update.mask, None)
    assert loss(update.mask, torch.full_like(logp, 0.5)) == pytest.approx(plain / 2)
    weight = importance_weights(update.old, update.rollout, update.mask)
    kept = rejection_mask(update.old, update.rollout, update.mask, level="seq_mean", estimator="k3", high=1e-3)
    assert math.isfinite(loss(kept, weight))
    assert loss(torch.zeros_like(kept), weight) == 0


def test_the_asked_names_are_there() -> None:
    assert {"grpo", "dr_grpo", "rloo", "gspo", "dapo", "ppo"} <= set(ALGORITHMS)
    assert all(entry.keeps and entry.drops and "arXiv:" in entry.source for entry in TABLE)
    assert len(ALGORITHMS) == len(TABLE)


@pytest.mark.parametrize(
    ("wrong", "right"), [("gpso", "gspo"), ("DR-GRPO", "dr_grpo"), ("reinforce++", "reinforce_pp")]
)
def test_a_wrong_name_brings_up_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=rf"did you mean '{right}'"):
        algorithm(wrong)


def test_a_name_like_no_other_brings_up_the_list() -> None:
    with pytest.raises(ConfigError, match="choose one of ppo"):
        algorithm("xyzzy")


def test_clip_bounds_can_be_given_where_there_are_any() -> None:
    update = Update()
    tight = loss_and_gradient(update, algorithm("grpo"), clip_low=0.01, clip_high=0.01)
    assert tight[0] != loss_and_gradient(update, algorithm("grpo"))[0]
    with pytest.raises(ConfigError, match="no clip bound"):
        loss_and_gradient(update, algorithm("sapo"), clip_low=0.1)
    with pytest.raises(ConfigError, match="negative"):
        loss_and_gradient(update, algorithm("grpo"), clip_high=-0.1)


def test_a_profile_widens_the_bounds_of_sequences_and_leaves_those_of_tokens() -> None:
    wide = {"sequence_clip_low": 0.03, "sequence_clip_high": 0.04, "aggregation": "token-mean"}
    bounds = {name: configured(RlConfig(algorithm=name, **wide)) for name in ("gspo", "gspo_token", "grpo", "sapo")}
    assert {(one.clip_low, one.clip_high) for one in (bounds["gspo"], bounds["gspo_token"])} == {(0.03, 0.04)}
    assert (bounds["grpo"].clip_low, bounds["grpo"].clip_high, bounds["sapo"].clip_low) == (0.2, 0.2, None)
    assert {one.aggregation for one in bounds.values()} == {"token-mean"}
    assert configured(RlConfig(algorithm="gspo")) == algorithm("gspo")


def test_advantages_that_differ_within_a_row_make_gspo_token() -> None:
    update, gspo = Update(), algorithm("gspo")
    row = gspo.advantage(REWARD, GROUP, update.mask.sum(-1))
    by_row, _ = policy_loss(gspo, update.logp, update.old, row, update.mask)
    spread = row[:, None].expand(ROWS, TOKENS)
    by_token, _ = policy_loss(gspo, update.logp, update.old, spread, update.mask)
    assert by_row == by_token
    uneven, _ = policy_loss(gspo, update.logp, update.old, spread * torch.arange(TOKENS), update.mask)
    assert uneven != by_row


def test_entropy_and_kl_need_their_inputs() -> None:
    update, grpo = Update(), algorithm("grpo")
    arguments = (grpo, update.logp, update.old, update.advantage(grpo), update.mask)
    with pytest.raises(ConfigError, match="reference"):
        policy_loss(*arguments, kl=0.1)
    with pytest.raises(ConfigError, match="entropy of each token"):
        policy_loss(*arguments, entropy=0.1)
    plain, _ = policy_loss(*arguments)
    loss, metrics = policy_loss(*arguments, entropy_BT=torch.full_like(update.logp, 2.0), entropy=0.1)
    assert metrics["entropy"] == pytest.approx(2)
    assert loss < plain


def test_shapes_must_agree() -> None:
    update, grpo = Update(), algorithm("grpo")
    with pytest.raises(ValueError, match="one shape"):
        policy_loss(grpo, update.logp, update.old[:, :-1], update.advantage(grpo), update.mask)


def test_nothing_to_train_is_refused() -> None:
    update, grpo = Update(), algorithm("grpo")
    with pytest.raises(TrainingError, match="no trained token"):
        policy_loss(grpo, update.logp, update.old, update.advantage(grpo), torch.zeros_like(update.mask))


def test_half_precision_is_lifted_before_anything_is_counted() -> None:
    gspo, mask = algorithm("gspo"), torch.ones(2, 999).bool()
    logp = torch.full((2, 999), -1.0, dtype=torch.bfloat16)
    loss, metrics = policy_loss(gspo, logp, logp, torch.tensor([1.0, -0.5], dtype=torch.bfloat16), mask)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(-0.25)
    assert metrics["tokens"] == 1998
