"""A tiny Qwen3-VL built on the spot: the real classes, random weights, and an initialisation that can learn.

It stands in for the hub's Qwen3-VL where there is neither network nor GPU. At this size most initialisations
never leave chance level; what decides it is that a token starts out attending to tokens like itself and copying what
it finds there (`k_proj = q_proj`, `o_proj = v_proj^T / 2`, `v_proj` orthogonal).
"""

from typing import Any

import torch
from torch import nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from flywheel.modeling.qwen import prepare
from flywheel.sections import TinyModelConfig

POSITIONS_PER_SIDE = 16
"""Side of the learned grid of vision positions, which the model interpolates to the size of the image."""


def build_model(tokenizer: Any, sizes: TinyModelConfig, seed: int) -> Qwen3VLForConditionalGeneration:
    """Random weights, float32, deterministic in `seed`; about 0.7 M parameters at the default sizes."""
    torch.manual_seed(seed)
    model: Any = Qwen3VLForConditionalGeneration(_config(tokenizer, sizes))
    with torch.no_grad():
        for layer in model.model.language_model.layers:
            _copying_attention(layer.self_attn)
            layer.mlp.down_proj.weight.mul_(0.5)
        embeddings = model.get_input_embeddings().weight
        embeddings.normal_(0, 0.12)
        visual = model.model.visual
        visual.patch_embed.proj.weight.normal_(0, 0.02)
        visual.pos_embed.weight.copy_(_separable_positions(sizes.vision_hidden))
    return prepare(model.float())


def _config(tokenizer: Any, sizes: TinyModelConfig) -> Qwen3VLConfig:
    to_id = tokenizer.convert_tokens_to_ids
    head_dim = sizes.hidden // sizes.heads
    section = head_dim // 6
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.mlp,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.heads,
        "head_dim": head_dim,
        "max_position_embeddings": 32768,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "mrope_section": [head_dim // 2 - 2 * section, section, section],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
        "pad_token_id": to_id("<|endoftext|>"),
    }
    vision = {
        "depth": sizes.vision_depth,
        "hidden_size": sizes.vision_hidden,
        "intermediate_size": sizes.vision_hidden * 2,
        "num_heads": 2,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": sizes.hidden,
        "num_position_embeddings": POSITIONS_PER_SIDE**2,
        "deepstack_visual_indexes": [0],
    }
    ends = {"eos_token_id": to_id("<|im_end|>"), "pad_token_id": to_id("<|endoftext|>")}
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=to_id("<|image_pad|>"),
        video_token_id=to_id("<|video_pad|>"),
        vision_start_token_id=to_id("<|vision_start|>"),
        vision_end_token_id=to_id("<|vision_end|>"),
        tie_word_embeddings=True,
        **ends,
    )


def _copying_attention(attention: Any) -> None:
    """Like attends to like, and what is found is copied."""
    attention.k_proj.weight.copy_(attention.q_proj.weight)
    nn.init.orthogonal_(attention.v_proj.weight)
    attention.o_proj.weight.copy_(attention.v_proj.weight.T * 0.5)


def _separable_positions(width: int) -> torch.Tensor:
    """Row part plus column part at scale 0.5: the stock 0.05 is swamped by the patches."""
    rows = torch.randn(POSITIONS_PER_SIDE, 1, width) * 0.5
    columns = torch.randn(1, POSITIONS_PER_SIDE, width) * 0.5
    return (rows + columns).reshape(-1, width)
