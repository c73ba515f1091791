"""Code that renders an image, scored by the image."""

from __future__ import annotations

import pytest
from mmgrpo.rewards.code.rendered_images import Rendered
from mmgrpo.rewards.images.similarity import ImageSimilarity
from PIL import Image

from mmgrpo.errors import ConfigError, RewardError
from tests.rewards.sandboxed import needs_sandbox
from tests.rewards.written import scores_of, wrote

HALVES = """
import sys
from PIL import Image
picture = Image.new("RGB", (32, 32), "white")
picture.paste("black", (0, 0, SIDE, 32))
picture.save(sys.stdout.buffer, "png")
"""


@needs_sandbox
def test_a_rendered_image_is_compared_with_the_reference() -> None:
    """Half black against a quarter black: a quarter of the pixels differ by 1."""
    reference = Image.new("RGB", (32, 32), "white")
    reference.paste("black", (0, 0, 16, 32))
    reward = Rendered(ImageSimilarity("mse", "picture"), ["python3", "draw.py"], file="draw.py", wrong=-1.0)
    code = [HALVES.replace("SIDE", side) for side in ("16", "8", "0")]
    code += ["print(7)", "raise SystemExit(1)", HALVES.replace("SIDE", "16").replace("(32, 32)", "(5000, 1)")]
    samples = [wrote(f"```python\n{program}\n```", picture=reference) for program in code]
    assert scores_of(reward, [*samples, wrote("no code", picture=reference), wrote(None)]) == [
        pytest.approx(1.0), pytest.approx(0.75), -1, -1, -1, -1, -1, None,
    ]  # fmt: skip


def test_missing_renderers_and_columns_raise() -> None:
    with pytest.raises(RewardError, match="command 'no-such-renderer' not found"):
        Rendered(ImageSimilarity("mse"), ["no-such-renderer"])([wrote("x")])
    with pytest.raises(ConfigError, match="must be lists"):
        Rendered(ImageSimilarity("mse"), "render")
