"""Reward for free-text answers by semantic similarity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from mmgrpo.types import Sample, Score

from ..models.text_features import TextFeatures
from ..parsing.explanations import comparison
from ..parsing.extraction import Extract, extract_answer, require_extract
from ..parsing.reference_values import accepted_texts, find_reference_error, read_references


@final
class TextSimilarity:
    """Reward: semantic similarity of answer and reference, the cosine of a text encoder's embeddings.

    The nearest of several references, in ``column``, is used. With a ``threshold`` the score is 1 if the cosine reaches
    it, else 0. A missing answer scores 0; an equal text scores 1.

    Example: ``{name: text_similarity, model: sentence-transformers/all-MiniLM-L6-v2}``.
    Settings: ``extract`` as in ``exact_match``; ``model``, an encoder with mean pooling over tokens.
    Range: -1 to 1, rarely below 0; with ``threshold`` 0 or 1.
    Source: Reimers and Gurevych 2019 (Sentence-BERT), arXiv:1908.10084, sec. 3, mean pooling and cosine.
    Traps: unrelated texts have a cosine well above 0, and a "not" changes little. Text beyond the maximum length of the
    encoder is ignored.
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
            return Score(0.0, comparison(answer, accepted))
        feature_ND = self._encoder.features([answer, *accepted])
        cosine, which = (feature_ND[1:] @ feature_ND[0]).max(0)
        return self._score(answer, accepted[int(which)], float(cosine))

    def _score(self, answer: str, nearest: str, cosine: float) -> Score:
        value = cosine if self._threshold is None else float(cosine >= self._threshold)
        return Score(value, comparison(answer, nearest) | {"parts": {"cosine": round(cosine, 4)}})
