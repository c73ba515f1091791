"""Scores with parts: the allowed forms, and that each stays with its sample."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.rewards.judges.remote_reward import RemoteReward

from mmgrpo.errors import DataError, RewardError
from mmgrpo.runs.sample_files import write_samples
from mmgrpo.scoring import Gate, NamedReward, Scorer, score
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.types import Prompt, Sample, Scope, Score, Scores
from tests.serving.loopback import serving

PROMPT = Prompt("q")


def texts(*some: str) -> list[Sample]:
    return [Sample(PROMPT, 0, member, text=text) for member, text in enumerate(some)]


def words(samples: Sequence[Sample]) -> list[Score | None]:
    """The length of each word; nothing of texts without any, a failure of digits."""
    result: list[Score | None] = []
    for sample in samples:
        at, scopes = 0, []
        for word in (sample.text or "").split(" "):
            if word:
                value = math.nan if word.isdigit() else None if word == "-" else float(len(word))
                scopes.append(Scope(at, at + len(word), value))
            at += len(word) + 1
        result.append(Score(float(len(scopes)), scopes=scopes) if sample.text else None)
    return result


def test_parts_are_ordered_and_not_empty() -> None:
    for start, end in ((-1, 2), (2, 2), (3, 2)):
        with pytest.raises(DataError, match="begin at 0 or later"):
            Scope(start, end, 1.0)
    with pytest.raises(DataError, match=r"Scope\.end must be an integer, got 2\.5"):
        Scope(0, 2.5, 1.0)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="ends at 3 and the next begins at 2"):
        Score(0.0, scopes=[Scope(0, 3, 1.0), Scope(2, 4, 1.0)])
    with pytest.raises(DataError, match="sequence of Scope"):
        Score(0.0, scopes=[(0, 3, 1.0)])  # type: ignore[list-item]
    wrong: Any = lambda samples: [Score(0.0, scopes=[Scope(0, 1, "much")])]  # type: ignore[arg-type]  # noqa: E731
    with pytest.raises(RewardError, match="must be a number or None, got 'much'"):
        score(texts("a"), [NamedReward("r", wrong)])


def test_numbers_of_parts_are_read_as_numbers_of_samples_are() -> None:
    scores = score(texts("red cat", "a 12 -", ""), [NamedReward("words", words)], max_failure_frac=1.0)
    assert scores.scopes == {
        "words": [
            (Scope(0, 3, 3.0), Scope(4, 7, 3.0)),
            (Scope(0, 1, 1.0), Scope(2, 4, None), Scope(5, 6, None)),
            None,
        ]
    }
    assert scores.failures == {"words": 1}
    assert scores.valid_BR.tolist() == [[True], [True], [False]]
    assert scores.explanations["words"][0] == {"scopes": [[0, 3, 3.0], [4, 7, 3.0]]}
    failed = score(
        texts("a"), [NamedReward("r", lambda s: [Score(math.nan, scopes=[Scope(0, 1, 1.0)])])], max_failure_frac=1.0
    )
    assert failed.scopes == {}  # of a sample that failed nothing is kept


def test_they_stay_with_their_samples() -> None:
    reward = [NamedReward("words", words)]
    two_rows, none, two = (score(texts(*some), reward) for some in (["a b", "c"], ["", ""], ["d e f"]))
    joined = Scores.concat([two_rows, none, two])
    assert joined.scopes["words"] == [*two_rows.scopes["words"], None, None, *two.scopes["words"]]
    assert joined.rows([4, 1]).scopes["words"] == [two.scopes["words"][0], two_rows.scopes["words"][1]]
    assert Scores.concat([none, none]).scopes == {}


def test_known_results_keep_them() -> None:
    scored: list[int] = []

    def counted(samples: Sequence[Sample]) -> list[Score | None]:
        scored.append(len(samples))
        return words(samples)

    scorer = Scorer([NamedReward("words", counted, deterministic=True)])
    first = scorer(texts("red cat", "a"))
    assert scorer(texts("red cat", "a")).scopes == first.scopes
    assert scored == [2]


def test_a_closed_gate_is_closed_for_parts() -> None:
    samples = texts("red cat", "a -")
    open_first: Any = lambda samples: [1.0, 0.0]  # noqa: E731
    for otherwise, expected in (("skip", None), ("zero", [Scope(0, 1, 0.0), Scope(2, 3, None)])):
        gate = Gate("open", 1.0, otherwise)  # type: ignore[arg-type]
        rewards = [NamedReward("open", open_first), NamedReward("words", words, gate=gate)]
        scores = score(samples, rewards)
        counting = shape_scores(scores, rewards, 0)[0].scopes["words"]
        assert list(counting[0] or ()) == list(scores.scopes["words"][0] or ())
        assert counting[1] == expected


def test_a_reward_server_returns_them() -> None:
    samples = texts("red cat", "a 12 -", "")
    here = score(samples, [NamedReward("words", words)], max_failure_frac=1.0)
    with serving({"words": words}) as url:
        remote = score(samples, [NamedReward("words", RemoteReward(url))], max_failure_frac=1.0)
    assert remote.scopes == here.scopes
    assert remote.failures == here.failures
    assert torch.equal(remote.value_BR, here.value_BR)


def test_explanations_have_the_first_of_them(tmp_path: Path) -> None:
    long = texts(" ".join("a" * 70), "b")
    write_samples(tmp_path / "step", long, score(long, [NamedReward("words", words)]))
    lines = [json.loads(line) for line in (tmp_path / "step" / "samples.jsonl").read_text().splitlines()]
    scopes = [line["explanations"]["words"]["scopes"] for line in lines]
    assert [len(some) for some in scopes] == [64, 1]
    assert scopes[0][1] == [2, 3, 1.0]
