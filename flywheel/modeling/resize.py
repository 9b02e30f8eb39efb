"""qwen-vl-utils' own resizing rule, also where torchvision is not installed."""

import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType

from flywheel.types import Size


@cache
def _smart_resize() -> Callable[..., tuple[int, int]]:
    """Import the rule. The package imports torchvision for its video reader, which the rule never touches and which
    has no build for every torch; a placeholder stands in for the length of the import."""
    try:
        from qwen_vl_utils import smart_resize
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        names = ("torchvision", "torchvision.io", "torchvision.transforms")
        modules = {name: ModuleType(name) for name in names}
        modules["torchvision"].__dict__.update(
            __version__="0", io=modules["torchvision.io"], transforms=modules["torchvision.transforms"]
        )
        modules["torchvision.transforms"].__dict__["InterpolationMode"] = object
        sys.modules.update(modules)
        try:
            from qwen_vl_utils import smart_resize
        finally:
            for name in names:
                del sys.modules[name]
    rule: Callable[..., tuple[int, int]] = smart_resize
    return rule


@cache
def model_size(screen: Size, factor: int, max_pixels: int) -> Size:
    """The size at which the model sees a screen: sides a multiple of `factor`, at most `max_pixels` in all."""
    height, width = _smart_resize()(screen.height, screen.width, factor=factor, max_pixels=max_pixels)
    return Size(width, height)
