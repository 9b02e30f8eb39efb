"""What one wave of the local engine works on: its cache, and how ids are drawn from logits.

Shapes: B sessions of a wave, T new tokens (padded), S cache length, H heads, K head width, L layers, V vocabulary.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


class WaveCache:
    """Keys and values of one wave, (L, B, H, S, K) each; `write_BT` says where the next tokens go."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self.write_BT: Tensor = torch.empty(0, 0, dtype=torch.long)

    @classmethod
    def empty(cls, model: Any, rows: int, room: int) -> "WaveCache":
        """Zeros for `rows` conversations of up to `room` tokens."""
        config = model.config.text_config
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, room, config.head_dim)
        keys, values = (torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in range(2))
        return cls(keys, values)

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """What transformers' attention calls: store (B, H, T, K) and return everything up to S."""
        rows = torch.arange(len(key))[:, None]
        self.keys[layer][rows, :, self.write_BT] = key.transpose(1, 2)
        self.values[layer][rows, :, self.write_BT] = value.transpose(1, 2)
        return self.keys[layer], self.values[layer]

    def get_seq_length(self, layer: int = 0) -> int:
        return int(self.keys.shape[3])

    def rows(self, keep: Tensor) -> "WaveCache":
        return WaveCache(self.keys[:, keep], self.values[:, keep])


def widths_alike(widths: Sequence[int]) -> list[slice]:
    """Cuts ascending widths where padding would cost more than another pass: a quarter wider, after eight rows."""
    cuts = [0]
    for at, width in enumerate(widths):
        if at - cuts[-1] >= 8 and width > 1.25 * widths[cuts[-1]]:
            cuts.append(at)
    return [slice(start, end) for start, end in pairwise([*cuts, len(widths)])]


def nucleus(logp_BV: Tensor, top_p: float) -> Tensor:
    """Probabilities, with everything outside the smallest set of mass `top_p` set to 0."""
    probabilities = logp_BV.exp()
    if top_p >= 1:
        return probabilities
    ordered, order = probabilities.sort(-1, descending=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return probabilities.scatter(-1, order, ordered.masked_fill(outside, 0.0))


def inverse_transform(probabilities_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """The first id whose cumulated (unnormalised) probability exceeds u times the total."""
    cumulated = probabilities_BV.cumsum(-1)
    # 1 - 2**-25 is 1 in float32, which would choose the last id whatever its probability.
    target = uniforms_B[:, None].clamp(max=1 - 2**-24) * cumulated[:, -1:]
    return (cumulated <= target).sum(-1)
