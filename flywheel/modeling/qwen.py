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
from torch import Tensor
from transformers import AutoConfig, Qwen3VLForConditionalGeneration, vision_utils

from flywheel.errors import PackingError, PolicyError
from flywheel.modeling.attention import Documents, Kernel, packed
from flywheel.modeling.sending import sent


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
    setattr(model, "packed_logits", MethodType(_packed_logits, model))  # noqa: B010  mypy knows no such method
    return model


def encode_images(model: Qwen3VLForConditionalGeneration, pixels_PC: Tensor, grids_K3: Tensor) -> ImageFeatures:
    """Patches of K images, with one temporal slot or two -> features of their merged tokens, in order.

    `grids_K3` lies on the CPU: where images begin is read from it in every layer, and a GPU would be waited for.
    """
    device = pixels_PC.device
    alike = bool((grids_K3 == grids_K3[0]).all())
    places = {name: sent(x, device) for name, x in _places(model, grids_K3).items()} if alike else {}
    given = (
        {"cu_seqlens": vision_utils.get_vision_cu_seqlens(grids_K3), "images": len(grids_K3), **places} if alike else {}
    )
    grids = grids_K3 if alike else grids_K3.to(device)
    out = model.model.visual(pixels_PC, grid_thw=grids, return_dict=True, **given)
    return ImageFeatures(out.pooler_output, torch.stack(out.deepstack_features))


def _places(model: Qwen3VLForConditionalGeneration, grids_K3: Tensor) -> dict[str, Tensor]:
    """Where the patches of K images of one size lie, worked out once instead of K times: a quarter of the tower's time
    at 64 small screens. `vision_utils` takes such tensors under these names instead of computing them.
    """
    visual, images = model.model.visual, len(grids_K3)
    merge = visual.config.spatial_merge_size
    positions = vision_utils.get_vision_position_ids(grids_K3[:1], merge).repeat(images, 1)
    side = visual.num_grid_per_side
    if hasattr(vision_utils, "get_vision_interpolation_indices_and_weights"):  # from 5.17 on, a line for each patch
        tables = vision_utils.get_vision_interpolation_indices_and_weights(grids_K3[:1], side, "bilinear", True, merge)
        corners, weights = (table.repeat(images, 1) for table in tables)
        return {"position_ids": positions, "interp_indices": corners, "interp_weights": weights}
    tables = vision_utils.get_vision_bilinear_indices_and_weights(grids_K3[:1], side, merge)
    corners, weights = (table.repeat(1, images) for table in tables)
    return {"position_ids": positions, "bilinear_indices": corners, "bilinear_weights": weights}


def embed(model: Qwen3VLForConditionalGeneration, ids: Tensor, features: ImageFeatures | None) -> tuple[Tensor, Tensor]:
    """Input embeddings with the image features in their places, and where those places are (bool, as `ids`).

    Ids on the CPU are counted there and then sent: a GPU need not be waited for.
    """
    places = ids == model.config.image_token_id
    found, given = int(places.sum()), 0 if features is None else len(features.embeds_ID)
    embeds = model.get_input_embeddings()(sent(ids, model.device))
    places = sent(places, model.device)
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


def _packed_logits(
    self: Qwen3VLForConditionalGeneration,
    ids_N: Tensor,
    position_ids_4N: Tensor,
    predict_K: Tensor,
    lengths: list[int],
    features: ImageFeatures | None,
) -> tuple[Tensor, Tensor]:
    """Logits at K positions of one packed row, (K, V), and the hidden states that they come from, (K, D).

    A method of the model, so that sharded weights are gathered.
    The integers come from the CPU. Full logits would take 51 GiB at 34,000 tokens.
    """
    embeds, places = embed(self, ids_N[None], features)
    positions = sent(position_ids_4N[:, None], self.device)
    hidden_1ND = hidden_states(self, embeds, places, features, positions, documents=Documents(tuple(lengths)))
    hidden_KD = hidden_1ND[0, sent(predict_K, self.device)]
    return self.lm_head(hidden_KD), hidden_KD


def use_packed_attention(model: Qwen3VLForConditionalGeneration, kernel: Kernel = "sdpa") -> None:
    """From now on the language model attends document by document and insists on `documents`."""
    model.model.language_model.config._attn_implementation = packed(kernel)


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
