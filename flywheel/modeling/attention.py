"""Attention of packed rows and of screenshots, on the fastest kernel that the machine has.

A packed row is attended document by document: nothing is computed across documents, and there is no mask. On Hopper
cuDNN's kernel takes 615 / 487 TFLOP/s forward / backward where flash 2 takes 300 / 270 (8B heads, 8,540 tokens); torch
prefers flash unless it is told.

Shapes: H heads, N tokens of one packed row, E channels of a head.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, AttentionMaskInterface

from flywheel.errors import PackingError

Kernel = Literal["cudnn", "flash", "sdpa"]
"""`sdpa` leaves the choice to torch, as CPUs and float32 need it."""
_BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


@dataclass(frozen=True, slots=True)
class Documents:
    """Lengths of the documents of a packed row. An object, because compiled layers are made anew for a list that has
    another number of entries."""

    lengths: tuple[int, ...]


def fastest(device: torch.device, dtype: torch.dtype) -> Kernel:
    """cuDNN from Hopper on, flash on older GPUs, torch's own choice elsewhere."""
    if device.type != "cuda" or dtype == torch.float32:
        return "sdpa"
    return "cudnn" if torch.cuda.get_device_capability(device) >= (9, 0) else "flash"


def use_kernel(kernel: Kernel) -> AbstractContextManager[Any]:
    """Attention inside runs on this kernel, or raises where the machine has it not."""
    return sdpa_kernel(_BACKENDS[kernel]) if kernel in _BACKENDS else nullcontext()


def packed(kernel: Kernel) -> str:
    """Name of the packed attention on a kernel, as transformers' configs know it."""
    return f"flywheel_packed_{kernel}"


def _attend(
    kernel: Kernel,
    module: nn.Module,
    query_1HNE: Tensor,
    key_1HNE: Tensor,
    value_1HNE: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    documents: Documents | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each document of one packed row, (1, N, H, E)."""
    if documents is None:
        raise PackingError("Packed attention was called without document lengths; documents would see each other.")
    grouped = query_1HNE.shape[1] != key_1HNE.shape[1]
    parts = (x.split(documents.lengths, 2) for x in (query_1HNE, key_1HNE, value_1HNE))
    with use_kernel(kernel):
        outs = [
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=grouped).transpose(1, 2)
            for q, k, v in zip(*parts, strict=True)
        ]
    return torch.cat(outs, 1), None


def _no_mask(*_: Any, **__: Any) -> None:
    """The lengths of documents take the place of a mask."""


def _outside_compiled_code(attend: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled layer hands its queries over here: lengths differ from row to row, and none of its code knows them."""
    disabled: Callable[..., Any] = torch.compiler.disable(attend)
    return disabled


for _kernel in get_args(Kernel):
    AttentionInterface.register(packed(_kernel), _outside_compiled_code(partial(_attend, _kernel)))
    AttentionMaskInterface.register(packed(_kernel), _no_mask)


def attend_images(kernel: Kernel) -> Callable[..., Tensor]:
    """A forward pass for the vision tower's attention that takes `images` of one size at once, not in a loop."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        cu_seqlens: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        images: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        if images is None:
            stock: Tensor = type(self).forward(self, hidden_states, cu_seqlens, position_embeddings, **kwargs)
            return stock
        patches = hidden_states.shape[0]
        q, k, v = self.qkv(hidden_states).reshape(patches, 3, self.num_heads, -1).unbind(1)
        q, k = (_turned(x, *position_embeddings) for x in (q, k))
        q, k, v = (x.reshape(images, patches // images, self.num_heads, -1).transpose(1, 2) for x in (q, k, v))
        with use_kernel(kernel):
            out = F.scaled_dot_product_attention(q, k, v, scale=self.scaling)
        projected: Tensor = self.proj(out.transpose(1, 2).reshape(patches, -1))
        return projected

    return forward


def _turned(x_PHE: Tensor, cos_PE: Tensor, sin_PE: Tensor) -> Tensor:
    """Rotary positions of P patches, computed in float32 as the tower does."""
    x = x_PHE.float()
    first, second = x.chunk(2, -1)
    turned = x * cos_PE[:, None].float() + torch.cat([-second, first], -1) * sin_PE[:, None].float()
    return turned.to(x_PHE.dtype)
