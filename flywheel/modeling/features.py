"""Screenshots -> image features, each distinct screenshot looked at once.

A still image fills both temporal slots of Qwen's patches with the same pixels, so patches are kept with one slot and
meet the sum of the two halves of the patch weights. Rescaling and normalising an 8-bit channel is a table of 256
numbers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from flywheel.chat import Chat
from flywheel.modeling.qwen import ImageFeatures, encode_images
from flywheel.types import Screenshot, Size

_Key = tuple[str, Size]
"""Hash of the bytes, and the size: two raw screens of one colour may differ in nothing else."""
CHUNK = 64
"""Images encoded at once: 64 screens of 160 x 128 are 16 MB of patches."""


def patches(images: Sequence[Screenshot], chat: Chat) -> tuple[np.ndarray, np.ndarray]:
    """What the image processor gives, with one temporal slot.

    Returns: float32 (sum of h * w, channels * patch * patch) in the processor's order, and int64 grids (images, 3).
    """
    processor = chat.processor.image_processor
    size, merge = processor.patch_size, processor.merge_size
    levels_CV = _levels(processor)
    parts, grids = [], []
    for image in images:
        pixels_HWC = _resized(image, chat)
        h, w = pixels_HWC.shape[0] // size, pixels_HWC.shape[1] // size
        blocks = pixels_HWC.reshape(h // merge, merge, size, w // merge, merge, size, 3)
        # (row, column) of the merged grid, then of the patch inside it, then channel, then pixels.
        parts.append(blocks.transpose(0, 3, 1, 4, 6, 2, 5).reshape(h * w, 3, size * size))
        grids.append((1, h, w))
    pixels_P3S = np.concatenate(parts)
    out = np.empty(pixels_P3S.shape, np.float32)
    for channel in range(3):
        np.take(levels_CV[channel], pixels_P3S[:, channel], out=out[:, channel])
    return out.reshape(len(out), -1), np.array(grids, np.int64)


def _levels(processor: Any) -> np.ndarray:
    """Normalised value of each 8-bit level for each channel, (3, 256), float32."""
    level = np.arange(256, dtype=np.float32) * np.float32(processor.rescale_factor)
    mean, std = (np.asarray(x, np.float32)[:, None] for x in (processor.image_mean, processor.image_std))
    return (level - mean) / std


def _resized(image: Screenshot, chat: Chat) -> np.ndarray:
    size = chat.model_size(image.size)
    if size == image.size:
        return image.array()
    return np.asarray(image.image().resize(size, Image.Resampling.BICUBIC))


class FeatureCache:
    """Features of screenshots that come again: in every epoch, and in every sample of a group.

    Only for a frozen vision tower. The oldest half goes when more than `most_bytes` are held. Those of a 160 x 128
    screen take 15 KB in the tiny model; those of a full screen in a 4 B model about 19 MB.
    """

    def __init__(self, model: Any, chat: Chat, most_bytes: int = 320 << 20) -> None:
        self._model, self._chat, self._most_bytes = model, chat, most_bytes
        self._kept: dict[_Key, ImageFeatures] = {}
        self._bytes = 0

    @torch.no_grad()
    def __call__(self, images: Sequence[Screenshot]) -> ImageFeatures | None:
        """Features of all images, in order; None for no images."""
        if not images:
            return None
        keys = [(image.sha256, image.size) for image in images]
        new = {key: image for key, image in zip(keys, images, strict=True) if key not in self._kept}
        pending = list(new.items())
        for at in range(0, len(pending), CHUNK):
            self._encode(pending[at : at + CHUNK])
        found = ImageFeatures.cat([self._kept[key] for key in keys])
        if self._bytes > self._most_bytes:
            for key in list(self._kept)[: (len(self._kept) + 1) // 2]:
                self._bytes -= self._kept.pop(key).nbytes
        return found

    def _encode(self, images: list[tuple[_Key, Screenshot]]) -> None:
        features = look(self._model, self._chat, [image for _, image in images])
        merge, at = self._chat.processor.image_processor.merge_size, 0
        for key, image in images:
            t, h, w = self._chat.grid(image.size)
            self._kept[key] = features[slice(at, at + t * h * w // merge**2)]
            self._bytes += self._kept[key].nbytes
            at += t * h * w // merge**2


def look(model: Any, chat: Chat, images: Sequence[Screenshot]) -> ImageFeatures:
    """Features of images, in order, with gradient where the vision tower has one."""
    pixels_PS, grids_K3 = patches(images, chat)
    pixels = torch.from_numpy(pixels_PS).to(model.device, model.dtype)
    return encode_images(model, pixels, torch.from_numpy(grids_K3).to(model.device))
