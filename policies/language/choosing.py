"""Which way rows go through a model, decided before a row of its kind is first drawn or taught."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mmgrpo.errors import PolicyError
from mmgrpo.policies.language.agreement import Tolerance, Trial, first_exact
from mmgrpo.policies.language.encoding import Encoded
from mmgrpo.policies.language.plain import Plain
from mmgrpo.policies.language.ways import Cached

logger = logging.getLogger(__name__)

Kind = tuple[tuple[str, ...], int, int]


class Choice:
    """The first of some ways that is exact on every kind of row seen so far.

    Attributes:
        way: the one that is taken now.
    """

    def __init__(
        self,
        candidates: Sequence[Cached],
        plain: Plain,
        trial: Trial,
        tolerance: Tolerance,
        *,
        against: Sequence[str] = (),
    ) -> None:
        """Nothing is decided yet.

        Args:
            candidates: the ways that are wanted more than the plain one, best first.
            plain: the plain way.
            trial: what they are compared on; its prompts are put in.
            tolerance: how far they may lie from the plain call.
            against: what is known to speak against ways that are no candidates.
        """
        self.way: Cached | Plain = candidates[0] if candidates else plain
        self._candidates = candidates
        self._plain = plain
        self._trial = trial
        self._tolerance = tolerance
        self._against = against
        self._seen: dict[Kind, list[Encoded]] = {}

    def see(self, prompts: Sequence[Encoded]) -> Cached | Plain:
        """The way for rows of these prompts and of all before them.

        Raises: PolicyError if none is exact: nothing has been drawn of what made it so.
        """
        seen = {kind: list(known) for kind, known in self._seen.items()}
        for prompt in sorted(prompts, key=lambda p: p.length):
            _take(seen.setdefault(_kind(prompt), []), prompt)
        if seen != self._seen:
            self._decide(seen)
            self._seen = seen
        return self.way

    def _decide(self, seen: dict[Kind, list[Encoded]]) -> None:
        prompts = [prompt for known in seen.values() for prompt in known]
        trial = self._trial.on(prompts, self._plain.vocabulary)
        found = first_exact(self._candidates, self._plain, trial, self._tolerance)
        reasons = "; ".join([*self._against, *found.reasons])
        rows, model = ", ".join(map(_described, seen)), type(self._plain.model).__name__
        if found.way is None:
            raise PolicyError(
                f"{model} cannot be trained on rows of {rows}: no way through it is exact ({reasons}); use another "
                "model, or prompts of another kind; policy.attention: eager helps where a kernel is not exact"
            )
        if reasons and (not self._seen or str(found.way) != str(self.way)):
            logger.warning("%s on rows of %s: %s is taken (%s)", model, rows, found.way, reasons)
        self.way = found.way


def _kind(prompt: Encoded) -> Kind:
    names = tuple(sorted({*prompt.per_token, *prompt.media}))
    return names, min(len(prompt.prompt.images), 2), min(len(prompt.prompt.videos), 2)


def _take(known: list[Encoded], prompt: Encoded) -> None:
    """Of each kind one prompt is kept, and one of another length."""
    if not known or (len(known) == 1 and known[0].length != prompt.length):
        known.append(prompt)


def _described(kind: Kind) -> str:
    counts = ("no", "one", "several")
    named = [(kind[1], "picture"), (kind[2], "video")]
    shown = [f"{counts[count]} {word}{'s' * (count > 1)}" for count, word in named if count]
    return " and ".join(shown) or "text alone"
