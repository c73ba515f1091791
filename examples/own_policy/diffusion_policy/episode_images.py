"""Episodes as images."""

from __future__ import annotations

from PIL import Image, ImageDraw
from torch import Tensor

from diffusion_policy.simulator import DECOY, GOAL, REACH, TOLERANCE

SIDE, SCALE = 128, 2  # pixels, and the factor by which it is enlarged
PUSHER, BLOCK, AIM = "#2563eb", "#d97706", "#16a34a"


def episode_image(path_NS: Tensor) -> Image.Image:
    """The table from above: the ways of pusher (blue) and block (orange), both where they ended, the goal in green.

    Shapes: (N, 4).
    """
    side = SIDE * SCALE
    image = Image.new("RGB", (side, side), "white")
    pen = ImageDraw.Draw(image)

    def at(x: float, y: float) -> tuple[float, float]:
        return (1 + x) * side / 2, (1 - y) * side / 2

    def disc(x: float, y: float, radius: float, fill: str | None, outline: str | None = None) -> None:
        (across, down), r = at(x, y), radius * side / 2
        pen.ellipse((across - r, down - r, across + r, down + r), fill=fill, outline=outline, width=SCALE)

    for (goal_x, goal_y), color in ((DECOY, "#d1d5db"), (GOAL, AIM)):
        disc(goal_x, goal_y, TOLERANCE, None, color)
    *_, (x, y, block_x, block_y) = ends = path_NS.tolist()
    disc(block_x, block_y, REACH * 0.6, "#fde68a")
    disc(x, y, REACH * 0.4, "#bfdbfe")
    for color, first in ((BLOCK, 2), (PUSHER, 0)):
        pen.line([at(point[first], point[first + 1]) for point in ends], fill=color, width=2 * SCALE, joint="curve")
        disc(ends[0][first], ends[0][first + 1], 0.03, color)
    return image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
