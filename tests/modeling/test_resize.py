"""Image sizes go through qwen-vl-utils' own rule."""

import subprocess
import sys

import pytest

from flywheel.modeling.resize import model_size
from flywheel.types import Size


@pytest.mark.parametrize(
    ("screen", "max_pixels", "expected"),
    [
        (Size(1920, 1080), 1_003_520, Size(1312, 736)),
        (Size(1920, 1080), 12_845_056, Size(1920, 1088)),
        (Size(160, 128), 1_003_520, Size(160, 128)),
        (Size(1280, 720), 1_003_520, Size(1280, 704)),
    ],
)
def test_known_sizes(screen: Size, max_pixels: int, expected: Size) -> None:
    assert model_size(screen, 32, max_pixels) == expected


def test_the_placeholder_for_torchvision_does_not_stay() -> None:
    """Others decide by `import torchvision` whether it is installed; a placeholder left behind would deceive them."""
    code = (
        "import sys\n"
        "from flywheel.modeling.resize import model_size\n"
        "from flywheel.types import Size\n"
        "before = 'torchvision' in sys.modules\n"
        "model_size(Size(64, 64), 32, 10**6)\n"
        "module = sys.modules.get('torchvision')\n"
        "assert module is None or module.__spec__ is not None, module\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
