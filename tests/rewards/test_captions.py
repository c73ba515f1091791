from __future__ import annotations

import math
import random
import time
from pathlib import Path

import pytest
from mmgrpo.rewards.text.captions import CaptionScore
from mmgrpo.rewards.text.ngrams import bleu, cider, document_frequencies, rouge_l

from mmgrpo.errors import ConfigError, RewardError
from tests.rewards.written import explained, score_of, wrote

VOCABULARY = ["a", "the", "dog", "cat", "sits", "runs", "on", "mat", "red", "and"]


def sentences(draw: random.Random, count: int) -> list[list[str]]:
    return [draw.choices(VOCABULARY, k=draw.randint(1, 9)) for _ in range(count)]


def test_rouge_by_hand():
    # "the cat sat" in common, of 3 and 6 words
    assert score_of(CaptionScore(), "The cat sat.", "the black cat sat down here") == pytest.approx(2 * 3 / 9)
    assert score_of(CaptionScore(), "sat cat the", "the cat sat") == pytest.approx(1 / 3)
    assert score_of(CaptionScore(), "a dog", ["two cats", "a big dog"]) == pytest.approx(0.8)
    assert score_of(CaptionScore(), "a dog", "a dog") == 1
    assert score_of(CaptionScore(), "", "a dog") == score_of(CaptionScore(), "?!", "a dog") == 0


def test_bleu_by_hand():
    # 1: 3 of 4; 2: the cat, of 3; no third, no fourth: 1/2 of 2, 1/4 of 1
    precisions = (3 / 4) * (1 / 3) * (1 / 4) * (1 / 4)
    made, reference = ["the", "cat", "on", "here"], ["the", "cat", "is", "on", "mats"]
    assert bleu(made, [reference]) == pytest.approx(math.exp(1 - 5 / 4) * precisions ** (1 / 4))
    assert score_of(CaptionScore(metric="bleu", order=1), "the the the", "the cat") == pytest.approx(1 / 3)
    assert score_of(CaptionScore(metric="bleu"), "a b c d", ["a b c d", "x"]) == 1
    assert score_of(CaptionScore(metric="bleu"), "a dog", "a dog") == 1  # orders above its length do not count
    assert score_of(CaptionScore(metric="bleu"), "x y", "a dog") == 0


def test_equal_to_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    draw = random.Random(0)
    values = set()
    for _ in range(300):
        (made,), references = sentences(draw, 1), sentences(draw, draw.randint(1, 3))
        theirs = sacrebleu.sentence_bleu(
            " ".join(made), [" ".join(words) for words in references], tokenize="none"
        ).score
        assert bleu(made, references) == pytest.approx(theirs / 100, abs=1e-12)
        values.add(theirs)
    assert len(values) > 100


def test_equal_to_rouge_score():
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
    draw = random.Random(0)
    for _ in range(300):
        made, reference = sentences(draw, 2)
        theirs = scorer.score(" ".join(reference), " ".join(made))["rougeL"].fmeasure
        assert rouge_l(made, reference) == pytest.approx(theirs, abs=1e-12)


def test_cider_by_hand():
    # one word in common of 2 each, no pair: cosine 1/2 for single words, 0 for pairs, and no longer runs
    assert cider(["a", "dog"], [["a", "cat"]], order=2) == pytest.approx(0.25)
    # "the" three times is clipped to the one there: 1 * 1 / (3 * 1), lengths 3 and 1
    assert cider(["the"] * 3, [["the"]], order=1) == pytest.approx(math.exp(-4 / 72) / 3)
    assert cider(["a", "b", "c", "d"], [["a", "b", "c", "d"], ["x", "y", "z", "w"]]) == pytest.approx(0.5)
    # "a" is in both documents: log 2/2 = 0 is its weight, so only "dog" counts
    frequencies = document_frequencies([[["a", "dog"]], [["a", "cat"]]], order=1)
    assert frequencies == {("a",): 2, ("dog",): 1, ("cat",): 1}
    assert cider(["a", "dog"], [["a", "dog"]], frequencies, 2, order=1) == pytest.approx(1)
    assert cider(["a", "cat"], [["a", "dog"]], frequencies, 2, order=1) == 0


def test_a_corpus_weighs(tmp_path: Path):
    corpus = tmp_path / "captions.txt"
    corpus.write_text("a dog\n\na cat\n")
    plain, weighed = CaptionScore(metric="cider", order=1), CaptionScore(metric="cider", order=1, corpus=str(corpus))
    assert score_of(plain, "a cat", "a dog") == pytest.approx(0.5)
    assert score_of(weighed, "a cat", "a dog") == 0
    assert score_of(weighed, "dog", "a dog") == pytest.approx(math.exp(-1 / 72))
    corpus.write_text("one line\n")
    with pytest.raises(RewardError, match="at least two lines"):
        CaptionScore(metric="cider", corpus=str(corpus))
    with pytest.raises(RewardError, match="cannot be read"):
        CaptionScore(metric="cider", corpus=str(tmp_path / "none.txt"))


@pytest.mark.parametrize("metric", ["rouge_l", "bleu", "cider"])
def test_ranges_and_invariances(metric: str):
    reward = CaptionScore(metric=metric)  # pyrefly: ignore[bad-argument-type]
    draw = random.Random(1)
    for _ in range(100):
        made, *references = (" ".join(words) for words in sentences(draw, 4))
        value = score_of(reward, made, references)
        assert 0 <= value <= 1
        assert score_of(reward, f"  {made.upper()}!\n", draw.sample(references, 3)) == pytest.approx(value, abs=1e-12)
        assert score_of(reward, made, made) == pytest.approx(1 if metric != "cider" else min(len(made.split()), 4) / 4)


def test_references_and_settings():
    for reference in ("...", [], ["?"], {"a": 1}):
        assert score_of(CaptionScore(), "a dog", reference) is None
    assert score_of(CaptionScore(), "a dog", ["?", "a dog"]) == 1
    assert explained(CaptionScore(extract="tag"), wrote("so <answer>A dog</answer>", "x")) == {
        "parsed": "A dog", "reference": "x",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"corpus has an effect only with metric: cider, got metric: bleu"):
        CaptionScore(metric="bleu", corpus="x")
    with pytest.raises(ConfigError, match=r"order must be in 1 \.\. 9, got 0"):
        CaptionScore(order=0)


@pytest.mark.parametrize("piece", ["a ", "a b ", "\u0301\u0323", "'", "_", "\U0001f600 ", "word" * 50 + " "])
def test_long_strings_end(piece: str):
    started = time.monotonic()
    for metric in ("rouge_l", "bleu", "cider"):
        reward = CaptionScore(metric=metric)
        for size in (9_990, 1_000_000):
            value = score_of(reward, piece * (size // len(piece)), "a b " * 2_400)
            assert 0 <= value <= 1 + 1e-12
    assert time.monotonic() - started < 20
