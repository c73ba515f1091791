"""Reward for code that renders images: rendered in a sandbox, then scored as an image."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import final

from PIL import Image

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.system.sandbox import Program, SandboxLimits, run
from mmgrpo.types import Sample, Score

from ..models.checkpoints import require_positive
from ..parsing.code_blocks import ExtractCode, extract_code
from ..parsing.extraction import require_choice
from ..parsing.inner_rewards import inner_scores
from .parallel_scoring import score_in_parallel
from .shell_commands import describe_outcome, find_command

MAX_SIDE = 4096
FORMS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")


@final
class Rendered:
    """Reward: an inner reward on the image that the code of the answer renders.

    The code is written to ``file`` in an empty folder; ``command`` runs there in a sandbox without network and with
    limits, or not at all (``docs/how-to/sandbox.md``), and must write an image (PNG, JPEG, GIF, BMP or WebP, of at most
    4,096 pixels a side) to its standard output. ``of`` scores that image, with the prompt of the sample. Code that
    cannot be rendered, or renders a single color, scores ``wrong``.

    Example: ``{name: rendered, of: {name: brightness}, command: [rsvg-convert, a.svg], file: a.svg}``.
    Settings: ``paths`` and ``extract`` as in ``command``.
    Range: that of ``of``, and ``wrong``.   Units: seconds, MiB.
    Source: rendered images compared with a reference as in TikZilla, arXiv:2603.03072, and its code.
    Traps: a renderer that includes files can render the reference, if that is within ``paths``. Fonts of the machine
    change the result: render the references on the same machine.
    """

    concurrent = True

    def __init__(
        self,
        of: Reward,
        command: Sequence[str],
        file: str = "figure.tex",
        paths: Sequence[str] = (),
        wrong: float = 0.0,
        extract: ExtractCode = "fenced",
        time_s: float = 60.0,
        memory_mb: int = 4096,
        concurrency: int = 4,
    ) -> None:
        if isinstance(command, str) or not command or isinstance(paths, str):
            raise ConfigError("Rendered.command and paths must be lists, such as [rsvg-convert, figure.svg] and []")
        self.of = of
        self._command = tuple(command)
        self._file = file
        self._paths = tuple(paths)
        self._wrong = wrong
        self._extract: ExtractCode = require_choice("Rendered.extract", extract, ExtractCode)
        self._limits = SandboxLimits(time_s=time_s, memory_mb=memory_mb, processes=32, output_kb=1 << 14)
        self._concurrency = require_positive("Rendered.concurrency", concurrency)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        binary = find_command(self._command[0], self._paths)
        rows = [None if sample.text is None else binary for sample in samples]
        renders = score_in_parallel(self._concurrency, self._render, samples, rows)
        values: list[float | Score | None] = [
            Score(self._wrong, {"reason": render}) if isinstance(render, str) else None for render in renders
        ]
        images = {i: render for i, render in enumerate(renders) if isinstance(render, Image.Image)}
        image_samples = [
            Sample(samples[i].prompt, samples[i].group, samples[i].member, image=render) for i, render in images.items()
        ]
        scores = inner_scores(self.of, image_samples).scores if image_samples else []
        for i, value in zip(images, scores, strict=True):
            values[i] = value
        return values

    def _render(self, text: str, binary: str) -> Image.Image | str:
        """The image, or the reason why there is none."""
        code = extract_code(text, self._extract)
        if code is None:
            return "no code"
        outcome = run(
            Program(
                command=(binary, *self._command[1:]),
                files={self._file: code},
                paths=self._paths,
                limits=self._limits,
            )
        )
        return _open_image(outcome.output) if outcome.succeeded else describe_outcome(outcome)


def _open_image(data: bytes) -> Image.Image | str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=FORMS)
            if max(image.size) > MAX_SIDE:
                return f"{image.size[0]} x {image.size[1]} pixels"
            image = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        return f"no image: {type(error).__name__}"
    return "a single color everywhere" if image.getcolors(1) is not None else image
