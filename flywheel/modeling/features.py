"""Screenshots -> image features, each distinct screenshot looked at once.

A still image fills both temporal slots of Qwen's patches with the same pixels, so patches are kept with one slot and
meet the sum of the two halves of the patch weights. Rescaling and normalising an 8-bit channel is a table of 256
numbers.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from flywheel.chat import Chat
from flywheel.modeling.qwen import ImageFeatures, encode_images
from flywheel.modeling.sending import sent
from flywheel.types import Screenshot, Size

_Key = tuple[str, Size]
"""Hash of the bytes, and the size: two raw screens of one colour may differ in nothing else."""
CHUNK = 64
"""Images encoded at once: 64 screens of 160 x 128 are 16 MB of patches."""
TURN = 1 << 15
"""Patches that a GPU looks at together: nine screens of 1280 x 720."""
READERS = 3
"""Threads that decode ahead, a thirtieth of a second a screenshot; eight got in the way of launching kernels."""


def patches(images: Sequence[Screenshot], chat: Chat) -> tuple[np.ndarray, np.ndarray]:
    """What the image processor gives, with one temporal slot.

    Returns: float32 (sum of h * w, channels * patch * patch) in the processor's order, and int64 grids (images, 3).
    """
    levels_CV = _levels(chat.processor.image_processor)
    pixels_P3S = np.concatenate([_cut(image, chat) for image in images])
    return _by_table(pixels_P3S, levels_CV), np.array([chat.grid(image.size) for image in images], np.int64)


def _cut(image: Screenshot, chat: Chat) -> np.ndarray:
    """Patches of one image, uint8 (h * w, channels, patch * patch), in the processor's order."""
    processor = chat.processor.image_processor
    size, merge = processor.patch_size, processor.merge_size
    pixels_HWC = chat.shown(image).array()
    h, w = pixels_HWC.shape[0] // size, pixels_HWC.shape[1] // size
    blocks = pixels_HWC.reshape(h // merge, merge, size, w // merge, merge, size, 3)
    # (row, column) of the merged grid, then of the patch inside it, then channel, then pixels.
    return blocks.transpose(0, 3, 1, 4, 6, 2, 5).reshape(h * w, 3, size * size)


def _by_table(pixels_P3S: np.ndarray, levels_CV: np.ndarray) -> np.ndarray:
    out = np.empty(pixels_P3S.shape, np.float32)
    for channel in range(3):
        np.take(levels_CV[channel], pixels_P3S[:, channel], out=out[:, channel])
    return out.reshape(len(out), -1)


def _values(pixels_P3S: np.ndarray, levels_CV: np.ndarray, device: torch.device) -> torch.Tensor:
    """Normalised patches on a device. A GPU is sent bytes, a quarter of the floats, and looks them up itself."""
    if device.type != "cuda":
        return torch.from_numpy(_by_table(pixels_P3S, levels_CV)).to(device)
    pixels = sent(torch.from_numpy(pixels_P3S), device).long()
    levels = sent(torch.from_numpy(levels_CV), device)
    return torch.stack([levels[c][pixels[:, c]] for c in range(3)], 1).flatten(1)


def _levels(processor: Any) -> np.ndarray:
    """Normalised value of each 8-bit level for each channel, (3, 256), float32."""
    level = np.arange(256, dtype=np.float32) * np.float32(processor.rescale_factor)
    mean, std = (np.asarray(x, np.float32)[:, None] for x in (processor.image_mean, processor.image_std))
    return (level - mean) / std


class FeatureCache:
    """Features of screenshots that come again: in every epoch, and in every sample of a group.

    Only for a frozen vision tower. The oldest half goes when more than `most_bytes` are held. Those of a 160 x 128
    screen take 15 KB in the tiny model; those of a full screen in a 4 B model about 19 MB. On a GPU that is the room
    for two rows, the one at work and the one that comes next.
    """

    def __init__(self, model: Any, chat: Chat, most_bytes: int | None = None) -> None:
        self._model, self._chat = model, chat
        self._most_bytes = most_bytes or (2 << 30 if model.device.type == "cuda" else 320 << 20)
        self._kept: dict[_Key, ImageFeatures] = {}
        self._bytes = 0
        self._readers: ThreadPoolExecutor | None = None
        self._reading: dict[_Key, Future[np.ndarray]] = {}

    def expect(self, images: Iterable[Screenshot]) -> None:
        """Begin to decode and cut what will be asked for soon, in threads: at 1280 x 720 some 40 ms a screenshot."""
        self._readers = self._readers or ThreadPoolExecutor(READERS, "screenshots")
        for image in images:
            key = _key(image)
            if key not in self._kept and key not in self._reading:
                self._reading[key] = self._readers.submit(_cut, image, self._chat)

    @torch.no_grad()
    def __call__(self, images: Sequence[Screenshot]) -> ImageFeatures | None:
        """Features of all images, in order; None for no images."""
        if not images:
            return None
        keys = [_key(image) for image in images]
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
        waiting = [self._reading.pop(key, None) for key, _ in images]
        cuts = [w.result() if w else _cut(image, self._chat) for w, (_, image) in zip(waiting, images, strict=True)]
        features = look(self._model, self._chat, [image for _, image in images], cuts)
        merge, at = self._chat.processor.image_processor.merge_size, 0
        for key, image in images:
            t, h, w = self._chat.grid(image.size)
            self._kept[key] = features[slice(at, at + t * h * w // merge**2)]
            self._bytes += self._kept[key].nbytes
            at += t * h * w // merge**2


@lru_cache(maxsize=128)
def _key(image: Screenshot) -> _Key:
    """Remembered, because a row asks three times for the hashes of all its screens."""
    return image.sha256, image.size


def look(
    model: Any, chat: Chat, images: Sequence[Screenshot], cuts: Sequence[np.ndarray] | None = None
) -> ImageFeatures:
    """Features of images, in order, with gradient where the vision tower has one.

    A GPU takes images of one size in turns of `TURN` patches: so many keep it busy, and so few shapes are compiled.

    Args:
        cuts: their patches, where they have been cut already.
    """
    cuts = [_cut(image, chat) for image in images] if cuts is None else cuts
    levels_CV = _levels(chat.processor.image_processor)
    grids_K3 = torch.tensor([chat.grid(image.size) for image in images])
    one_size = len({image.size for image in images}) == 1
    turn = max(1, TURN // len(cuts[0])) if one_size and model.device.type == "cuda" else len(cuts)
    found = []
    for at in range(0, len(cuts), turn):
        values_PS = _values(np.concatenate(cuts[at : at + turn]), levels_CV, model.device)
        found.append(encode_images(model, values_PS.to(model.model.visual.dtype), grids_K3[at : at + turn]))
    return ImageFeatures.cat(found) if len(found) > 1 else found[0]
