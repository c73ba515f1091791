"""Reward for answers in words that may say the right thing in other words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from mmgrpo.types import Sample, Score

from ..models.text_features import TextFeatures
from ..parsing.explanations import compared
from ..parsing.extraction import Extract, extract_answer, require_extract
from ..parsing.reference_values import accepted_texts, find_reference_error, read_references


@final
class TextSimilarity:
    """Reward: how near the answer comes to the reference in meaning, by the cosine of a text encoder's features.

    Of several references, in ``column``, the nearest counts. With a ``threshold`` it is 1 from there on and 0 below. No
    answer scores 0; the same text scores 1.

    Example: ``{name: text_similarity, model: sentence-transformers/all-MiniLM-L6-v2}``.
    Settings: ``extract`` as in ``exact_match``; ``model``, an encoder of which the mean over a text's tokens is taken.
    Range: -1 to 1, seldom below 0; with ``threshold`` 0 or 1.
    Source: Reimers and Gurevych 2019 (Sentence-BERT), arXiv:1908.10084, sec. 3, mean pooling and cosine.
    Traps: unrelated texts have a cosine well above 0, and a "not" changes little. What the encoder does not read, since
    the text is too long, does not count.
    """

    deterministic = True

    def __init__(
        self,
        model: str,
        column: str = "answer",
        extract: Extract = "none",
        threshold: float | None = None,
        device: str | None = None,
    ) -> None:
        self.column = column
        self._extract: Extract = require_extract("TextSimilarity.extract", extract)
        self._threshold = threshold
        self._encoder = TextFeatures(model=model, device=device)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        accepted_lists = read_references("text_similarity", samples, self.column, accepted_texts)
        return [
            None if accepted is None else self._nearest(s.text or "", accepted)
            for s, accepted in zip(samples, accepted_lists, strict=True)
        ]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, accepted_texts, "a text, a number, or a list of them")

    def _nearest(self, text: str, accepted: Sequence[str]) -> Score:
        answer = extract_answer(text, self._extract)
        if not answer:
            return Score(0.0, compared(answer, accepted))
        feature_ND = self._encoder.features([answer, *accepted])
        cosine, which = (feature_ND[1:] @ feature_ND[0]).max(0)
        return self._score(answer, accepted[int(which)], float(cosine))

    def _score(self, answer: str, nearest: str, cosine: float) -> Score:
        value = cosine if self._threshold is None else float(cosine >= self._threshold)
        return Score(value, compared(answer, nearest) | {"parts": {"cosine": round(cosine, 4)}})
