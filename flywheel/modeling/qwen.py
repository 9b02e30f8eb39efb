"""Everything that touches the inside of transformers' Qwen3-VL, in one place.

The model is run in three public pieces - `model.visual`, `model.language_model`, `lm_head` - so that image features can
be reused, prompts can be extended, and logits are computed only where somebody asks for them.

Shapes: N tokens of one packed row or B x T of a padded batch, D hidden size, V vocabulary, I merged image tokens.
"""

from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, Qwen3VLForConditionalGeneration
from transformers.vision_utils import get_vision_bilinear_indices_and_weights, get_vision_position_ids

from flywheel.errors import PackingError, PolicyError

PACKED = "flywheel_packed"


@dataclass(frozen=True, slots=True)
class ImageFeatures:
    """What the vision tower hands to the language model for I merged tokens."""

    embeds_ID: Tensor
    deepstack_LID: Tensor

    def __getitem__(self, where: Any) -> "ImageFeatures":
        return ImageFeatures(self.embeds_ID[where], self.deepstack_LID[:, where])

    @property
    def nbytes(self) -> int:
        return self.embeds_ID.nbytes + self.deepstack_LID.nbytes

    @classmethod
    def cat(cls, parts: "list[ImageFeatures]") -> "ImageFeatures":
        return cls(torch.cat([p.embeds_ID for p in parts]), torch.cat([p.deepstack_LID for p in parts], 1))


def load_model(source: str, *, dtype: str = "float32", device: str = "cpu") -> Qwen3VLForConditionalGeneration:
    """From a hub id or a folder. Raises `PolicyError` for anything but a Qwen3-VL checkpoint."""
    try:
        config = AutoConfig.from_pretrained(source)
        if config.model_type != "qwen3_vl":
            raise PolicyError(
                f"'{source}' is a {config.model_type} checkpoint; flywheel trains qwen3_vl, for example "
                "Qwen/Qwen3-VL-4B-Instruct."
            )
        model: Any = Qwen3VLForConditionalGeneration.from_pretrained(source, dtype=getattr(torch, dtype))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        where = Path(source).name if Path(source).exists() else source
        raise PolicyError(f"The model '{where}' cannot be loaded: {str(error).splitlines()[0]}") from error
    return prepare(model.to(device))


def prepare(model: Qwen3VLForConditionalGeneration) -> Qwen3VLForConditionalGeneration:
    """Exact replacements that make small screens fast; idempotent, and invisible in what is saved."""
    model.model.visual.patch_embed.forward = MethodType(_linear_patches, model.model.visual.patch_embed)
    return model


def encode_images(model: Qwen3VLForConditionalGeneration, pixels_PC: Tensor, grids_K3: Tensor) -> ImageFeatures:
    """Patches of K images, with one temporal slot or two -> features of their merged tokens, in order."""
    places = _places(model, grids_K3) if bool((grids_K3 == grids_K3[0]).all()) else {}
    out = model.model.visual(pixels_PC, grid_thw=grids_K3, return_dict=True, **places)
    return ImageFeatures(out.pooler_output, torch.stack(out.deepstack_features))


def _places(model: Qwen3VLForConditionalGeneration, grids_K3: Tensor) -> dict[str, Tensor]:
    """Where the patches of K images of one size lie, worked out once instead of K times: a quarter of the tower's time
    at 64 small screens. `vision_utils` takes such tensors under these names instead of computing them.
    """
    visual, images = model.model.visual, len(grids_K3)
    merge = visual.config.spatial_merge_size
    corners, weights = get_vision_bilinear_indices_and_weights(grids_K3[:1], visual.num_grid_per_side, merge)
    return {
        "position_ids": get_vision_position_ids(grids_K3[:1], merge).repeat(images, 1),
        "bilinear_indices": corners.repeat(1, images),
        "bilinear_weights": weights.repeat(1, images),
    }


def embed(model: Qwen3VLForConditionalGeneration, ids: Tensor, features: ImageFeatures | None) -> tuple[Tensor, Tensor]:
    """Input embeddings with the image features in their places, and where those places are (bool, as `ids`)."""
    embeds = model.get_input_embeddings()(ids)
    places = ids == model.config.image_token_id
    found, given = int(places.sum()), 0 if features is None else len(features.embeds_ID)
    if found != given:
        raise PackingError(f"{found} image tokens but {given} image features; screenshots were lost on the way.")
    if features is not None:
        embeds = embeds.masked_scatter(places[..., None], features.embeds_ID.to(embeds.dtype))
    return embeds, places


def hidden_states(
    model: Qwen3VLForConditionalGeneration,
    embeds_BTD: Tensor,
    places_BT: Tensor,
    features: ImageFeatures | None,
    position_ids_RBT: Tensor,
    **attention: Any,
) -> Tensor:
    """The language model's last hidden states, (B, T, D). `position_ids` has 3 rows, or 4 when packed."""
    visual = (
        {}
        if features is None
        else {"visual_pos_masks": places_BT, "deepstack_visual_embeds": list(features.deepstack_LID)}
    )
    out = model.model.language_model(
        inputs_embeds=embeds_BTD, position_ids=position_ids_RBT, use_cache=False, **visual, **attention
    )
    return out.last_hidden_state


def use_packed_attention(model: Qwen3VLForConditionalGeneration) -> None:
    """From now on the language model attends document by document and insists on `document_lengths`."""
    model.model.language_model.config._attn_implementation = PACKED


def use_standard_attention(model: Qwen3VLForConditionalGeneration) -> None:
    """Back to what transformers chooses."""
    model.model.language_model.config._attn_implementation = "sdpa"


def _linear_patches(self: Any, hidden_states: Tensor) -> Tensor:
    """The patch convolution has stride = kernel: a matrix product, which CPUs run about 4 times faster.

    Patches of still images come with one temporal slot (see `features`); both slots would hold the same pixels.
    """
    weight = self.proj.weight
    if hidden_states.shape[-1] * self.temporal_patch_size == weight[0].numel():
        weight = weight.sum(2)
    return F.linear(hidden_states.to(weight.dtype), weight.flatten(1), self.proj.bias)


def _packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    document_lengths: list[int] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each document of one packed row; nothing is ever computed across documents."""
    if document_lengths is None:
        raise PackingError("Packed attention was called without document lengths; documents would see each other.")
    outs = [
        F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1])
        for q, k, v in zip(*(x.split(document_lengths, 2) for x in (query, key, value)), strict=True)
    ]
    return torch.cat(outs, 2).transpose(1, 2), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Document lengths take the place of a mask."""


AttentionInterface.register(PACKED, _packed_attention)
AttentionMaskInterface.register(PACKED, _no_mask)
