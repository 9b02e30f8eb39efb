"""The processor: tokenizer, image processor and chat template, built, saved and loaded without torchvision.

`AutoProcessor` on a machine without torchvision silently returns only the tokenizer, which would make a blind model;
`load_processor` therefore assembles the parts itself and proves that pixels come out.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, Qwen2VLImageProcessorPil, Qwen3VLProcessor

from flywheel.errors import PolicyError

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


class ImageTextProcessor(Qwen3VLProcessor):
    """Qwen3-VL's processor without its video half, which needs torchvision."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str | None = None, **kwargs: Any) -> None:
        super().__init__(image_processor=image_processor, tokenizer=tokenizer, chat_template=chat_template, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """As Qwen3-VL's own class writes itself, video half and all: engines have that class, and not this one."""
        video = {"video_processor_type": "Qwen3VLVideoProcessor"}
        return {**super().to_dict(), "processor_class": "Qwen3VLProcessor", "video_processor": video}


def build_processor(tokenizer: Any) -> ImageTextProcessor:
    """A processor around an offline tokenizer, with Qwen3-VL's patch sizes and pixel statistics."""
    images = Qwen2VLImageProcessorPil(
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
        size={"shortest_edge": 4 * 32 * 32, "longest_edge": 16384 * 32 * 32},
    )
    return ImageTextProcessor(images, tokenizer, chat_template=CHAT_TEMPLATE.read_text())


def load_processor(source: str) -> ImageTextProcessor:
    """From a hub id or a folder. Raises `PolicyError` when it would leave the model blind."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        images = Qwen2VLImageProcessorPil.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise PolicyError(f"No processor could be loaded from '{source}': {str(error).splitlines()[0]}") from error
    template = getattr(tokenizer, "chat_template", None) or _template_file(source)
    if template is None:
        raise PolicyError(f"The processor of '{source}' has no chat template; take a chat model such as an Instruct.")
    processor = ImageTextProcessor(images, tokenizer, chat_template=template)
    _check_pixels(processor, source)
    return processor


def _template_file(source: str) -> str | None:
    """Older checkpoints keep the template beside the tokenizer, as text or inside JSON."""
    plain, wrapped = Path(source) / "chat_template.jinja", Path(source) / "chat_template.json"
    if plain.is_file():
        return plain.read_text()
    return str(json.loads(wrapped.read_text())["chat_template"]) if wrapped.is_file() else None


def _check_pixels(processor: ImageTextProcessor, source: str) -> None:
    black, white = (np.full((64, 64, 3), value, np.uint8) for value in (0, 255))
    out = processor.image_processor([black, white], return_tensors="np")
    pixels = out.get("pixel_values")
    if pixels is None or np.allclose(pixels[: len(pixels) // 2], pixels[len(pixels) // 2 :]):
        raise PolicyError(f"The image processor of '{source}' yields no pixels; the model would be blind.")
