"""The policy as trainers see it: distributions, entropy, fingerprints."""

import pytest
import torch

from flywheel.trainers.model import PolicyModel, fingerprint
from flywheel.trainers.packing import PackedRow, pack
from tests.tiny import Tiny, episodes, some_tasks


@pytest.fixture(scope="module")
def row(tiny: Tiny) -> PackedRow:
    return pack([tiny.chat.sample(t) for t in episodes(tiny, some_tasks(2))], image_id=tiny.chat.image_id)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_distribution_sums_to_one_and_leaves_forbidden_ids_out(
    tiny: Tiny, row: PackedRow, temperature: float
) -> None:
    with torch.no_grad():
        logp_KV = tiny.fresh().distribution(row, temperature)
    assert torch.allclose(logp_KV.exp().sum(-1), torch.ones(len(logp_KV)), atol=1e-5)
    assert (logp_KV[:, list(tiny.chat.forbidden_ids)] == float("-inf")).all()
    assert logp_KV.shape == (len(row.predict_K), len(tiny.chat.processor.tokenizer))


def test_logprobs_are_those_of_the_targets(tiny: Tiny, row: PackedRow) -> None:
    policy = tiny.fresh()
    with torch.no_grad():
        logp_KV, chosen = policy.distribution(row), policy.logprobs(row)
    assert chosen.tolist() == logp_KV[torch.arange(len(chosen)), torch.from_numpy(row.targets_K)].tolist()


def test_entropy_and_its_gradient_are_finite(tiny: Tiny, row: PackedRow) -> None:
    """Forbidden ids have log-probability -inf, and 0 * -inf is NaN."""
    policy = tiny.fresh()
    logp, entropy = policy.logprobs_and_entropy(row)
    with torch.no_grad():
        expected = torch.distributions.Categorical(logits=policy.distribution(row)).entropy()
    assert torch.allclose(entropy, expected, atol=1e-4)
    assert torch.equal(logp, policy.logprobs(row))
    entropy.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in policy.trainable if parameter.grad is not None)


def test_a_policy_with_free_vision_trains_it(tiny: Tiny, row: PackedRow) -> None:
    policy = PolicyModel(tiny.fresh().model.requires_grad_(True), tiny.chat, frozen=False)
    policy.logprobs(row).sum().backward()
    gradients = [parameter.grad for parameter in policy.model.model.visual.parameters()]
    assert all(gradient is not None and gradient.any() for gradient in gradients)


def test_a_fingerprint_changes_with_any_bit(tiny: Tiny) -> None:
    parameters = list(tiny.fresh().model.parameters())
    before = fingerprint(parameters)
    assert before == tiny.policy.fingerprint
    assert len(before) == 16
    for weight in (parameters[0], parameters[-1]):
        bits = weight.detach().view(torch.int32).view(-1)
        bits[-1] ^= 1
        assert fingerprint(parameters) != before
        bits[-1] ^= 1
        assert fingerprint(parameters) == before


def test_a_fingerprint_is_that_of_the_values_in_bfloat16_too() -> None:
    weight = torch.arange(6).reshape(2, 3)
    assert fingerprint([weight.bfloat16()]) != fingerprint([weight.half()])
    assert fingerprint([weight.T.float()]) == fingerprint([weight.T.float().contiguous()])


def test_a_row_that_was_packed_ahead_is_that_of_its_samples_alone(
    tiny: Tiny, row: PackedRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, shown on the CPU: the row is taken once, and other samples never get it."""
    monkeypatch.setattr(PolicyModel, "_on_gpu", True)
    policy, coming, others = tiny.fresh(), list(row.samples), list(row.samples[:1])
    policy.look_ahead(coming)
    assert policy.pack(others).samples == tuple(others)
    policy.look_ahead(coming)
    ahead = policy.pack(coming)
    assert ahead.samples == row.samples
    assert (ahead.ids_N == row.ids_N).all()
    assert policy.pack(coming) is not ahead
