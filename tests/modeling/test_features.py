"""Patches are those of the image processor; features of a screenshot are computed once, and bounded."""

import numpy as np
import pytest
import torch
from PIL import Image

from flywheel.modeling.features import FeatureCache, look, patches
from flywheel.modeling.policy import make_chat
from flywheel.types import Screenshot
from tests.tiny import Tiny, small_config


def shot(seed: int, width: int = 160, height: int = 128) -> Screenshot:
    return Screenshot.from_array(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", [(160, 128), (64, 64), (320, 96)])
def test_patches_are_the_processors_pixel_values(tiny: Tiny, size: tuple[int, int]) -> None:
    images = [shot(seed, *size) for seed in range(3)]
    ours, grids = patches(images, tiny.chat)
    theirs = tiny.chat.processor.image_processor([image.image() for image in images], return_tensors="np")
    slots = theirs["pixel_values"].reshape(len(ours), 3, 2, -1)
    assert (slots[:, :, 0] == slots[:, :, 1]).all()
    assert np.abs(ours - slots[:, :, 0].reshape(len(ours), -1)).max() < 1e-6
    assert (grids == theirs["image_grid_thw"]).all()


def test_a_large_screen_is_resized_as_qwen_vl_utils_does(tiny: Tiny) -> None:
    """First their rule and PIL's bicubic filter, then the processor, which has nothing left to resize."""
    image = shot(0, 200, 140)
    ours, grids = patches([image], tiny.chat)
    width, height = tiny.chat.model_size(image.size)
    assert (width % 32, height % 32) == (0, 0)
    resized = image.image().resize((width, height), Image.Resampling.BICUBIC)
    theirs = tiny.chat.processor.image_processor([resized], return_tensors="np")
    slot = theirs["pixel_values"].reshape(len(ours), 3, 2, -1)[:, :, 0]
    assert np.abs(ours - slot.reshape(len(ours), -1)).max() < 1e-6
    assert grids.tolist() == [[1, height // 16, width // 16]]


def test_the_cache_gives_what_the_tower_gives_in_the_order_asked_for(tiny: Tiny) -> None:
    images = [shot(seed) for seed in range(3)]
    cache = FeatureCache(tiny.model, tiny.chat)
    cache(images[:2])
    asked = [images[2], images[0], images[2], images[1]]
    found, expected = cache(asked), look(tiny.model, tiny.chat, asked)
    assert found is not None
    assert torch.allclose(found.embeds_ID, expected.embeds_ID, atol=1e-6)
    assert torch.allclose(found.deepstack_LID, expected.deepstack_LID, atol=1e-6)
    assert not found.embeds_ID.requires_grad
    assert cache([]) is None


def test_each_screenshot_is_looked_at_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counting(model: object, chat: object, images: list[Screenshot], cuts: list[np.ndarray]) -> object:
        seen.append(len(images))
        return look(model, tiny.chat, images, cuts)

    monkeypatch.setattr("flywheel.modeling.features.look", counting)
    cache = FeatureCache(tiny.model, tiny.chat)
    images = [shot(seed) for seed in range(3)]
    cache(images + images)
    cache(images)
    assert seen == [3]


def test_screenshots_that_were_expected_are_read_ahead(tiny: Tiny) -> None:
    images = [shot(seed) for seed in range(3)]
    cache = FeatureCache(tiny.model, tiny.chat)
    cache.expect([*images, *images])
    found, expected = cache(images), look(tiny.model, tiny.chat, images)
    assert found is not None
    assert torch.equal(found.embeds_ID, expected.embeds_ID)
    assert not cache._reading
    cache.expect(images)
    assert not cache._reading


def test_screens_of_one_colour_are_told_apart_by_their_size(tiny: Tiny) -> None:
    """Their bytes are the same: 160 x 128 and 128 x 160 black pixels."""
    wide, tall = (Screenshot(bytes(160 * 128 * 3), *size) for size in ((160, 128), (128, 160)))
    cache = FeatureCache(tiny.model, tiny.chat)
    cache([wide])
    found, expected = cache([tall]), look(tiny.model, tiny.chat, [tall])
    assert found is not None
    assert torch.allclose(found.embeds_ID, expected.embeds_ID, atol=1e-6)


def test_the_cache_stays_within_its_bytes(tiny: Tiny) -> None:
    one = look(tiny.model, tiny.chat, [shot(0)])
    cache = FeatureCache(tiny.model, tiny.chat, most_bytes=4 * one.nbytes)
    for seed in range(40):
        cache([shot(seed)])
        assert len(cache._kept) <= 4
        assert cache._bytes == sum(features.nbytes for features in cache._kept.values())
    many = [shot(seed) for seed in range(40)]
    found = cache(many)
    assert found is not None
    assert len(found.embeds_ID) == 40 * 20


def test_max_pixels_bounds_what_the_model_sees(tiny: Tiny) -> None:
    config = small_config(tiny.config.home_path, "model.max_pixels=8192")
    chat = make_chat(config, tiny.chat.processor)
    _, grids = patches([shot(0)], chat)
    assert grids.prod() * 16 * 16 <= 8192
    assert tuple(grids[0]) == chat.grid(shot(0).size)
