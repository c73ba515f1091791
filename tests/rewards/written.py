"""Samples of a policy that writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mmgrpo.types import Prompt, Sample


def wrote(text: str | None, answer: Any = None, *, tokens: Sequence[int] | None = None, **columns: Any) -> Sample:
    """A sample with this text, whose row has the reference in column ``answer`` unless it is None."""
    known = {} if answer is None else {"answer": answer}
    return Sample(Prompt("q", columns=known | columns), group=0, member=0, text=text, tokens=tokens)


def score_of(reward: Callable[[Sequence[Sample]], list[float | None]], text: str | None, answer: Any = None) -> Any:
    """What the reward says of one text."""
    return reward([wrote(text, answer)])[0]
