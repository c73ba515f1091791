"""Reward for captions: overlap of words and n-grams with references."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison
from ..parsing.extraction import Extract, extract_answer, require_choice, require_extract, words
from ..parsing.reference_values import accepted_texts, find_reference_error, score_against_reference
from .ngrams import Words, bleu, cider, document_frequencies, rouge_l

Metric = Literal["rouge_l", "bleu", "cider"]


@final
class CaptionScore:
    """Reward: similarity of the answer to one or several references by shared words: ROUGE-L, BLEU or CIDEr.

    ``rouge_l`` is the F1 of the longest common subsequence of words with the best reference; ``bleu`` the geometric
    mean of the smoothed clipped precisions of 1- to ``order``-grams in any reference, times the brevity penalty;
    ``cider`` the mean over references and 1- to ``order``-grams of the clipped TF-IDF cosine, with the Gaussian length
    penalty of CIDEr-D.

    Words are lower case, without punctuation. ``corpus`` is a text file for the IDF weights of ``cider``, one document
    per line (in CIDEr: the references of one image); without it all n-grams have equal weight. The reference, in
    ``column``, is a text or a list of texts.

    Settings: ``extract`` as in ``exact_match``.
    Range: 0 to 1 (the CIDEr paper multiplies by 10, most tables report BLEU times 100).
    Source: Lin 2004 (ROUGE); Papineni et al. 2002 (BLEU), smoothed as sacrebleu's sentence_bleu; Vedantam et al. 2015
    (CIDEr), arXiv:1411.5726. As a reward in Video-R1, arXiv:2503.21776 (ROUGE). Deviation: no stemming.
    Traps: overlap is not correctness: "a dog" for "no dog" costs one word. ``bleu`` favors short generic texts up to
    its penalty, ``rouge_l`` words in the usual order. Texts in languages without spaces are single words; texts of
    more than 10,000 characters score 0.
    """

    def __init__(
        self,
        column: str = "answer",
        metric: Metric = "rouge_l",
        order: int = 4,
        corpus: str | None = None,
        extract: Extract = "none",
    ) -> None:
        if not 1 <= order <= 9:
            raise ConfigError(f"CaptionScore.order must be in 1 .. 9, got {order}")
        self._metric: Metric = require_choice("CaptionScore.metric", metric, Metric)
        if corpus is not None and metric != "cider":
            raise ConfigError(f"CaptionScore.corpus has an effect only with metric: cider, got metric: {metric}")
        self.column = column
        self._order = order
        self._extract: Extract = require_extract("CaptionScore.extract", extract)
        documents = [] if corpus is None else [[words(line)] for line in _lines(corpus)]
        self._documents = len(documents)
        self._frequencies = None if corpus is None else document_frequencies(documents, order)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("caption_score", samples, self.column, _captions, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, _captions, "a text, a number, or a list of them, with a word")

    def _score(self, text: str, references: list[Words]) -> Score:
        answer = extract_answer(text, self._extract) or ""
        answer_words = words(answer)
        nearest = max(references, key=lambda reference: rouge_l(answer_words, reference))
        return Score(self._value(answer_words, references, nearest), comparison(answer or None, " ".join(nearest)))

    def _value(self, answer_words: Words, references: list[Words], nearest: Words) -> float:
        if self._metric == "rouge_l":
            return rouge_l(answer_words, nearest)
        if self._metric == "bleu":
            return bleu(answer_words, references, self._order)
        return cider(answer_words, references, self._frequencies, self._documents, self._order)


def _captions(value: Any) -> list[Words] | None:
    """The words of each non-empty reference."""
    captions: list[Words] = [text_words for text in accepted_texts(value) or [] if (text_words := words(text))]
    return captions or None


def _lines(path: str) -> list[str]:
    try:
        lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise RewardError(f"CaptionScore.corpus {path!r} cannot be read as UTF-8 text: {error}") from error
    if len(lines) < 2:
        raise RewardError(f"CaptionScore.corpus {path!r} needs at least two lines, one document each")
    return lines
