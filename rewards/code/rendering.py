"""A reward for code that draws: rendered in a sandbox, then judged as a picture."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import final

from PIL import Image

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from ..models.checkpoints import positive
from ..parsing.code import ExtractCode, code_in
from ..parsing.extraction import one_of
from .commands import told, where_is
from .judging import at_once
from .sandbox import Limits, Program, run

MAX_SIDE = 4096
FORMS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")


@final
class Rendered:
    """Reward: another reward, asked about the picture that the answer's code draws.

    The code is written to ``file`` in an empty folder, ``command`` is run there, in a sandbox without network and
    within the limits, or not at all (``docs/sandbox.md``), and must write a picture (PNG, JPEG, GIF, BMP or WebP, of at
    most 4,096 pixels a side) to its standard output. ``of`` is asked about that picture, with the prompt of the sample.
    What cannot be rendered, or is all of one colour, scores ``wrong``.

    Example: ``{name: rendered, of: {name: brightness}, command: [rsvg-convert, a.svg], file: a.svg}``.
    Settings: ``paths`` and ``extract`` as in ``command``.
    Range: that of ``of``, and ``wrong``.   Units: seconds, MiB.
    Source: pictures of code held against a reference as in TikZilla, arXiv:2603.03072, and its code.
    Traps: a renderer that includes files can show the reference, if that lies within ``paths``. Fonts of the machine
    change what is drawn: render the references on it too.
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
        self._extract: ExtractCode = one_of("Rendered.extract", extract, ExtractCode)
        self._limits = Limits(time_s=time_s, memory_mb=memory_mb, processes=32, output_kb=1 << 14)
        self._concurrency = positive("Rendered.concurrency", concurrency)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        binary = where_is(self._command[0], self._paths)
        rows = [None if sample.text is None else binary for sample in samples]
        drawn = at_once(self._concurrency, self._drawn, samples, rows)
        values: list[float | Score | None] = [
            Score(self._wrong, {"reason": one}) if isinstance(one, str) else None for one in drawn
        ]
        shown = {i: one for i, one in enumerate(drawn) if isinstance(one, Image.Image)}
        asked = [Sample(samples[i].prompt, samples[i].group, samples[i].member, image=one) for i, one in shown.items()]
        said = list(self.of(asked)) if asked else []
        if len(said) != len(asked):
            raise RewardError(f"the reward within gave {len(said)} values for {len(asked)} samples")
        for i, value in zip(shown, said, strict=True):
            values[i] = value
        return values

    def _drawn(self, text: str, binary: str) -> Image.Image | str:
        """The picture, or why there is none."""
        code = code_in(text, self._extract)
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
        return _opened(outcome.output) if outcome.succeeded else told(outcome)


def _opened(data: bytes) -> Image.Image | str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(data), formats=FORMS)
            if max(picture.size) > MAX_SIDE:
                return f"{picture.size[0]} x {picture.size[1]} pixels"
            picture = picture.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        return f"no picture: {type(error).__name__}"
    return "all of one colour" if picture.getcolors(1) is not None else picture
