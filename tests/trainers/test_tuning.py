"""What is trained and how fast: adapters, checkpointing, filled rows and compiled layers change no gradient."""

import copy
from typing import Any

import pytest
import torch

from flywheel.modeling import attention
from flywheel.modeling.attention import attend_images, fastest, packed
from flywheel.modeling.features import look
from flywheel.sections import ModelConfig
from flywheel.trainers.model import PolicyModel, fingerprint
from flywheel.trainers.packing import document_lengths
from flywheel.trainers.tuning import merge_adapters, tuned
from flywheel.types import TrainingSample
from tests.tiny import Tiny, shown


@pytest.fixture(scope="module")
def samples(tiny: Tiny) -> list[TrainingSample]:
    return shown(tiny, 6)


def policy_of(tiny: Tiny, **settings: Any) -> PolicyModel:
    policy = tuned(copy.deepcopy(tiny.model), tiny.chat, ModelConfig(**settings))
    policy.model.train()
    return policy


def gradient(policy: PolicyModel, rows: list[list[TrainingSample]]) -> torch.Tensor:
    for part in rows:
        (-policy.logprobs(policy.pack(part)).sum()).backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.trainable if parameter.grad is not None])


@pytest.mark.parametrize("settings", [{"bucket": 64}, {"bucket": 256}, {"bucket": 100}, {"checkpointing": True}])
def test_neither_filling_nor_checkpointing_changes_gradients(
    tiny: Tiny, samples: list[TrainingSample], settings: dict[str, Any]
) -> None:
    """Within 1e-5 of one document a row, as all of packing is."""
    expected = gradient(policy_of(tiny), [[sample] for sample in samples])
    found = gradient(policy_of(tiny, **settings), [samples])
    assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_checkpointing_runs_layers_twice(tiny: Tiny, samples: list[TrainingSample]) -> None:
    """Guards the test above: what is not switched on changes nothing either."""
    calls = []
    policy = policy_of(tiny, checkpointing=True)
    policy.model.model.language_model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    gradient(policy, [samples])
    assert len(calls) == 2


def test_filled_rows_have_the_length_of_the_bucket_and_count_what_is_learned_from(
    tiny: Tiny, samples: list[TrainingSample]
) -> None:
    row = policy_of(tiny, bucket=256).pack(samples)
    lengths = document_lengths(row.position_ids_4N)
    assert len(row.ids_N) % 256 == 0
    assert all(length % 64 == 0 for length in lengths[: len(samples)])
    assert row.tokens == sum(len(sample.input_ids) for sample in samples) < len(row.ids_N)


def test_compiled_layers_give_the_same_gradients(tiny: Tiny, samples: list[TrainingSample]) -> None:
    """Traced but not translated, which takes a minute here; documents of other lengths trace nothing anew."""
    torch._dynamo.reset()
    policy = policy_of(tiny, bucket=1024)
    traced: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        traced.append(1)
        return graph.forward

    for layer in policy.model.model.language_model.layers:
        layer.compile(dynamic=False, backend=backend)
    expected = gradient(policy_of(tiny), [samples])
    found = gradient(policy, [samples])
    assert (found - expected).norm() <= 1e-5 * expected.norm()
    first = len(traced)
    gradient(policy, [samples[::-1], samples[:3]])
    assert 0 < first == len(traced)
    torch._dynamo.reset()


def test_screens_attended_together_are_those_attended_one_by_one(tiny: Tiny, samples: list[TrainingSample]) -> None:
    images = [image for sample in samples for image in sample.images]
    model = copy.deepcopy(tiny.model)
    with torch.no_grad():
        expected = look(model, tiny.chat, images)
        for block in model.model.visual.blocks:
            block.attn.forward = attend_images("sdpa").__get__(block.attn)
        found = look(model, tiny.chat, images)
    assert torch.allclose(found.embeds_ID, expected.embeds_ID, atol=1e-5)
    assert torch.allclose(found.deepstack_LID, expected.deepstack_LID, atol=1e-5)


def test_adapters_never_touch_vision_and_leave_with_what_they_learned(
    tiny: Tiny, samples: list[TrainingSample]
) -> None:
    policy = policy_of(tiny, lora_rank=4)
    model = policy.model
    vision, names = fingerprint(model.model.visual.parameters()), set(tiny.model.state_dict())
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name.rsplit(".", 3)[1] for name in trained} == {"lora_A", "lora_B"}
    assert len(trained) == 2 * 7 * tiny.config.model.tiny.layers
    assert not any("visual" in name for name in model.state_dict() if "lora" in name)
    gradient(policy, [samples])
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter += 0.05 * torch.randn_like(parameter)
        learned = policy.logprobs(policy.pack(samples))
        merge_adapters(model)
        merged = policy.logprobs(policy.pack(samples))
    assert torch.allclose(merged, learned, atol=1e-4)
    assert not torch.allclose(merged, tiny.fresh().logprobs(policy.pack(samples)), atol=1e-2)
    assert set(model.state_dict()) == names
    assert fingerprint(model.model.visual.parameters()) == vision


def test_vision_is_trained_where_it_is_asked_for(tiny: Tiny, samples: list[TrainingSample]) -> None:
    policy = policy_of(tiny, vision="trained")
    assert len(policy.trainable) == len(list(policy.model.parameters()))


def test_the_kernel_is_what_the_machine_has(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fastest(torch.device("cpu"), torch.bfloat16) == "sdpa"
    for capability, kernel in (((8, 0), "flash"), ((9, 0), "cudnn"), ((10, 0), "cudnn")):
        monkeypatch.setattr(attention.torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert fastest(torch.device("cuda"), torch.bfloat16) == kernel
        assert fastest(torch.device("cuda"), torch.float32) == "sdpa"
    forced = policy_of(tiny, attention="flash")
    assert forced.model.model.language_model.config._attn_implementation == packed("flash")
