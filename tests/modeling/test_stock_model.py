"""The tiny model is a Qwen3-VL like any other: stock classes load it, and give the same numbers as our three pieces."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3VLForConditionalGeneration

from flywheel.errors import PolicyError
from flywheel.jobs import base_model
from flywheel.modeling.build import build_model
from flywheel.modeling.features import look
from flywheel.modeling.policy import load_policy
from flywheel.modeling.positions import rope_positions
from flywheel.modeling.qwen import embed, hidden_states, load_model, use_packed_attention, use_standard_attention
from flywheel.trainers.model import PolicyModel, fingerprint
from flywheel.trainers.packing import pack
from flywheel.types import Observation, PolicyRef, Sampling, Screenshot, TrainingSample
from tests.tiny import Notes, Tiny, converse, episodes, small_config, some_tasks


@pytest.fixture(scope="module")
def sample(tiny: Tiny) -> TrainingSample:
    """A conversation with three screenshots."""
    trajectory = episodes(tiny, some_tasks(1))[0]
    assert len(trajectory.turns) == 3
    return tiny.chat.sample(trajectory)


def stock_logits(folder: str, tiny: Tiny, sample: TrainingSample) -> torch.Tensor:
    """(N, V) by transformers alone: its classes, its processor, its positions."""
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(folder).eval()
    images = tiny.chat.processor.image_processor([shot.image() for shot in sample.images], return_tensors="pt")
    ids = torch.from_numpy(sample.input_ids)[None]
    with torch.no_grad():
        out = model(
            input_ids=ids,
            mm_token_type_ids=(ids == tiny.chat.image_id).int(),
            pixel_values=images["pixel_values"],
            image_grid_thw=images["image_grid_thw"],
        )
    logits: torch.Tensor = out.logits[0]
    return logits


def our_logits(model: Any, tiny: Tiny, sample: TrainingSample) -> torch.Tensor:
    """(N, V) by vision tower, language model and head, one after the other."""
    use_standard_attention(model)
    ids = torch.from_numpy(sample.input_ids)[None]
    rope_3N, _ = rope_positions(sample.input_ids, sample.image_grids, image_id=tiny.chat.image_id)
    with torch.no_grad():
        features = look(model, tiny.chat, sample.images)
        embeds, places = embed(model, ids, features)
        hidden = hidden_states(model, embeds, places, features, torch.from_numpy(rope_3N)[:, None])
        logits: torch.Tensor = model.lm_head(hidden[0])
    return logits


def test_three_pieces_are_the_stock_forward_pass(tiny: Tiny, sample: TrainingSample) -> None:
    ours = our_logits(tiny.fresh().model, tiny, sample)
    assert torch.allclose(ours, stock_logits(tiny.policy.uri, tiny, sample), atol=2e-5)


def test_logits_depend_on_the_pixels(tiny: Tiny, sample: TrainingSample) -> None:
    """Guards the test above: a blind model would agree with a blind model."""
    inverted = Screenshot.from_array(255 - sample.images[0].array())
    swapped = replace(sample, images=(inverted, *sample.images[1:]))
    before, after = (our_logits(tiny.fresh().model, tiny, one) for one in (sample, swapped))
    assert (before - after).abs().max() > 1e-2


def test_a_saved_model_is_loaded_by_path_as_a_hub_model_would_be(
    tiny: Tiny, sample: TrainingSample, tmp_path: Path
) -> None:
    """`model.base: PATH` in a profile is all it takes; not even policy.json is there."""
    hub = tmp_path / "hub-model"
    tiny.model.save_pretrained(hub)
    tiny.chat.processor.save_pretrained(hub)
    config = small_config(tmp_path, f"model.base={hub}")
    result = base_model.run(config, {"out": str(tmp_path / "base")}, Notes())
    policy = PolicyRef(**result["policy"])
    assert policy.fingerprint == tiny.policy.fingerprint
    assert result["metrics"]["parameters"] == sum(p.numel() for p in tiny.model.parameters())
    model, chat = load_policy(config, policy)
    assert torch.equal(our_logits(model, tiny, sample), our_logits(tiny.fresh().model, tiny, sample))
    assert chat.tokenise("Click Save .") == tiny.chat.tokenise("Click Save .")


def test_a_trained_model_is_saved_without_traces_of_our_replacements(
    tiny: Tiny, sample: TrainingSample, tmp_path: Path
) -> None:
    policy = tiny.fresh()
    row = pack([sample], image_id=tiny.chat.image_id)
    (-policy.logprobs(row).mean()).backward()
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter -= 0.01 * parameter.grad
    use_packed_attention(policy.model)
    policy.model.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    assert "flywheel" not in text
    stock = stock_logits(str(tmp_path), tiny, sample)
    assert torch.allclose(our_logits(policy.model, tiny, sample), stock, atol=2e-5)
    assert not torch.allclose(stock, stock_logits(tiny.policy.uri, tiny, sample), atol=1e-3)


def test_generate_of_transformers_continues_as_the_local_engine_does(tiny: Tiny, sample: TrainingSample) -> None:
    """Greedy decoding of the first turn: the engine's own loop against `generate` with pixels."""
    task = some_tasks(1)[0]
    shot = sample.images[0]
    (ours,) = asyncio.run(converse(tiny.agent(), task, Sampling(temperature=0.0, max_tokens=8), [Observation(shot)]))
    ids = torch.from_numpy(tiny.chat.expand(ours.prompt_ids, [tiny.chat.grid(shot.size)]))[None]
    images = tiny.chat.processor.image_processor([shot.image()], return_tensors="pt")
    stock: Any = Qwen3VLForConditionalGeneration.from_pretrained(tiny.policy.uri).eval()
    out = stock.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == tiny.chat.image_id).int(),
        pixel_values=images["pixel_values"],
        image_grid_thw=images["image_grid_thw"],
        max_new_tokens=8,
        do_sample=False,
        suppress_tokens=list(tiny.chat.forbidden_ids),
        eos_token_id=tiny.chat.end_id,
        pad_token_id=tiny.chat.end_id,
    )
    assert tuple(out[0, ids.shape[1] :].tolist()) == ours.completion_ids


def test_a_build_is_decided_by_its_seed(tiny: Tiny) -> None:
    tokenizer, sizes = tiny.chat.processor.tokenizer, tiny.config.model.tiny
    first, again, other = (fingerprint(build_model(tokenizer, sizes, seed).parameters()) for seed in (0, 0, 1))
    assert first == again
    assert other != first


def test_the_language_model_starts_out_copying_what_is_alike(tiny: Tiny) -> None:
    model: Any = build_model(tiny.chat.processor.tokenizer, tiny.config.model.tiny, seed=0)
    for layer in model.model.language_model.layers:
        attention = layer.self_attn
        assert torch.equal(attention.q_proj.weight, attention.k_proj.weight)
        identity = attention.o_proj.weight @ attention.v_proj.weight
        assert torch.allclose(identity, 0.5 * torch.eye(len(identity)), atol=1e-5)


def test_the_linear_patch_layer_is_the_convolution(tiny: Tiny) -> None:
    """With two temporal slots as the processor gives them, and with one as `features` does."""
    stock: Any = Qwen3VLForConditionalGeneration.from_pretrained(tiny.policy.uri)
    layer, ours = stock.model.visual.patch_embed, tiny.model.model.visual.patch_embed
    slot = torch.randn(5, 3, 1, 16 * 16)
    twice = slot.expand(-1, -1, 2, -1).reshape(5, -1)
    with torch.no_grad():
        expected = layer(twice)
        assert torch.allclose(ours(twice), expected, atol=1e-5)
        assert torch.allclose(ours(slot.reshape(5, -1)), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot be loaded"),
        (lambda folder: _truncate(folder / "model.safetensors"), "cannot be loaded|truncated"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "cannot be loaded|corrupt"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "qwen2"}'), "is a qwen2 checkpoint"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be loaded"),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_damaged_model_is_one_sentence(tiny: Tiny, tmp_path: Path, break_it: Any, message: str, known: bool) -> None:
    """Also where nothing is known of the weights beforehand, as of a hub model."""
    folder = tmp_path / "model"
    tiny.model.save_pretrained(folder)
    tiny.chat.processor.save_pretrained(folder)
    break_it(folder)
    reference = PolicyRef("x", str(folder), None, "0123456789abcdef" if known else "")
    with pytest.raises(PolicyError, match=message) as caught:
        load_policy(tiny.config, reference)
    assert "\n" not in str(caught.value)


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def test_a_policy_that_is_nowhere_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be loaded") as caught:
        load_model(str(tmp_path / "nothing"))
    assert "\n" not in str(caught.value)


def test_a_policy_model_freezes_all_of_the_vision_tower(tiny: Tiny) -> None:
    policy = PolicyModel(tiny.fresh().model, tiny.chat)
    frozen = {name for name, parameter in policy.model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in policy.model.named_parameters() if ".visual." in name}
    assert {name.split(".visual.")[1].split(".")[0] for name in frozen} == {
        "patch_embed",
        "pos_embed",
        "blocks",
        "merger",
        "deepstack_merger_list",
    }
