"""The processor survives saving and loading, and one that would blind the model is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import Qwen3VLProcessor

from flywheel.errors import PolicyError
from flywheel.modeling.processor import CHAT_TEMPLATE, ImageTextProcessor, build_processor, load_processor
from flywheel.modeling.tokenizer import build_tokenizer
from tests.tiny import Tiny

PICTURES = [np.full((64, 64, 3), value, np.uint8) for value in (0, 200)]


def test_saved_and_loaded_it_is_the_same(tiny: Tiny, tmp_path: Path) -> None:
    tiny.chat.processor.save_pretrained(tmp_path)
    loaded = load_processor(str(tmp_path))
    assert isinstance(loaded, ImageTextProcessor)
    assert loaded.chat_template == tiny.chat.processor.chat_template == CHAT_TEMPLATE.read_text()
    text = "<|im_start|>user\nClick Save at 999 .<|im_end|>"
    ours, theirs = (processor.tokenizer(text)["input_ids"] for processor in (tiny.chat.processor, loaded))
    assert ours == theirs
    before, after = (
        processor.image_processor(PICTURES, return_tensors="np")["pixel_values"]
        for processor in (tiny.chat.processor, loaded)
    )
    assert (before == after).all()


def test_the_call_with_text_and_images_expands_placeholders(tiny: Tiny) -> None:
    """The processor's own expansion and ours agree."""
    text = "<|vision_start|><|image_pad|><|vision_end|>Click Save ."
    out = tiny.chat.processor(text=[text], images=[PICTURES[0]], return_tensors="np")
    assert out["input_ids"][0].tolist() == tiny.chat.expand(tiny.chat.tokenise(text), [(1, 4, 4)]).tolist()
    assert out["mm_token_type_ids"][0].sum() == 4


@pytest.mark.parametrize("where", ["jinja", "json"])
def test_older_checkpoints_keep_the_template_in_a_file(tmp_path: Path, where: str) -> None:
    build_processor(build_tokenizer([], [], 0)).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(PolicyError, match="no chat template"):
        load_processor(str(tmp_path))
    template = "{{ messages[0].content }}"
    if where == "jinja":
        (tmp_path / "chat_template.jinja").write_text(template)
    else:
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert load_processor(str(tmp_path)).chat_template == template


def test_one_that_yields_no_pixels_is_refused(tmp_path: Path) -> None:
    """Black and white screens look the same to it: the model would be blind, without an error anywhere."""
    processor = build_processor(build_tokenizer([], [], 0))
    processor.image_processor.image_std = [1e12] * 3
    processor.save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match="would be blind"):
        load_processor(str(tmp_path))


def test_nothing_to_load_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="No processor could be loaded") as caught:
        load_processor(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_engines_find_their_own_class_in_what_is_saved(tiny: Tiny, tmp_path: Path) -> None:
    """`AutoProcessor`, which they call, wants a class that transformers has, and a configuration of its video half."""
    tiny.chat.processor.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "processor_config.json").read_text())
    assert saved["processor_class"] == Qwen3VLProcessor.__name__
    assert saved["video_processor"] == {"video_processor_type": "Qwen3VLVideoProcessor"}
