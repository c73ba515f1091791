from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

import pytest

from mmgrpo.serving.batching import Batcher, TooBusyError, merge_requests
from mmgrpo.serving.server_metrics import Metrics
from mmgrpo.types import Prompt, Sample, Score
from tests.serving.loopback import counted


def wrote(*texts: str, group: int = 0) -> list[Sample]:
    return [Sample(Prompt("q"), group, i, text=text) for i, text in enumerate(texts)]


class Recording:
    """A reward that gives lengths, keeps the texts of its calls, and waits for a signal at the first."""

    def __init__(self) -> None:
        self.calls: list[list[str | None]] = []
        self.go, self.begun = threading.Event(), threading.Event()

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        self.calls.append([sample.text for sample in samples])
        self.begun.set()
        self.go.wait(10)
        if any(sample.text == "bad" for sample in samples):
            raise ValueError("bad")
        return [float(len(sample.text or "")) for sample in samples]


@pytest.fixture
def reward() -> Recording:
    return Recording()


def test_waiting_requests_are_scored_together(reward: Recording):
    metrics = Metrics()
    batcher = Batcher("r", reward, metrics, max_batch=4)
    first = batcher.submit(wrote("x"))
    reward.begun.wait(10)
    others = [batcher.submit(wrote(*texts)) for texts in (["a", "bb"], ["ccc"], ["dd", "e"], ["f"] * 9)]
    reward.go.set()
    assert [answer.result(10).values for answer in [first, *others]] == [[1], [1, 2], [3], [2, 1], [1] * 9]
    batcher.close()
    # 2 + 1 fit into 4, two more do not; nine of one call stay together, although they are more than a batch
    assert reward.calls == [["x"], ["a", "bb", "ccc"], ["dd", "e"], ["f"] * 9]
    text = metrics.text().decode()
    assert counted(text, "mmgrpo_batch_samples_count") == 4
    assert counted(text, "mmgrpo_samples_total") == 15
    assert counted(text, "mmgrpo_failed_samples_total") == 0


def test_a_request_that_raises_fails_alone(reward: Recording):
    metrics = Metrics()
    batcher = Batcher("r", reward, metrics)
    first = batcher.submit(wrote("x"))
    reward.begun.wait(10)
    good, bad = batcher.submit(wrote("aa")), batcher.submit(wrote("bad", "b"))
    reward.go.set()
    assert first.result(10).values == [1]
    assert good.result(10).values == [2]
    assert bad.result(10).values == [None, None]
    assert bad.result(10).failed == [0, 1]
    assert bad.result(10).error == "ValueError: bad"
    batcher.close()
    assert reward.calls[1:] == [["aa", "bad", "b"], ["aa"], ["bad", "b"]]
    assert counted(metrics.text().decode(), "mmgrpo_failed_samples_total") == 2


def test_too_many_waiting_requests_are_rejected(reward: Recording):
    batcher = Batcher("r", reward, Metrics(), max_waiting=2)
    answers = [batcher.submit(wrote("a"))]
    reward.begun.wait(10)
    answers += [batcher.submit(wrote("b")), batcher.submit(wrote("c"))]
    with pytest.raises(TooBusyError, match="2 samples are already queued"):
        batcher.submit(wrote("d"))
    reward.go.set()
    assert [answer.result(10).values for answer in answers] == [[1]] * 3
    batcher.close()


def test_canceled_requests_are_not_scored(reward: Recording):
    batcher = Batcher("r", reward, Metrics())
    batcher.submit(wrote("a"))
    reward.begun.wait(10)
    canceled, other = batcher.submit(wrote("b")), batcher.submit(wrote("c"))
    assert canceled.cancel()
    reward.go.set()
    assert other.result(10).values == [1]
    batcher.close()
    assert reward.calls == [["a"], ["c"]]


def test_a_request_waits_no_longer_than_its_window():
    batcher = Batcher("r", lambda samples: [0.0] * len(samples), Metrics(), window_s=0.2)
    start = time.monotonic()
    batcher.submit(wrote("a")).result(10)
    assert 0.2 <= time.monotonic() - start < 5
    batcher.close()


def test_values_failures_and_explanations_are_returned():
    scores = [None, 0.1, math.nan, math.inf, Score(1.5, {"boxes": [1]}), Score(math.nan, {"why": "x"})]
    batcher = Batcher("r", lambda samples: scores, Metrics())
    answer = batcher.submit(wrote(*"abcdef")).result(10)
    assert answer.values == [None, 0.1, None, None, 1.5, None]
    assert answer.failed == [2, 3, 5]
    assert answer.explanations == [None, None, None, None, {"boxes": [1]}, {"why": "x"}]
    short = batcher.submit(wrote("a")).result(10)
    assert short.failed == [0]
    assert short.error == "RewardError: the reward gave 6 values for 1 samples"
    batcher.close()


def test_explanations_of_every_kind_arrive():
    """As JSON has them; none of them ends the thread that judges."""
    scores = [Score(1.0, {1: (2, 3)}), Score(1.0, {"path": "\ud800"}), Score(1.0, {"nested": {"deep": [None, 0.5]}})]  # type: ignore[dict-item]
    batcher = Batcher("r", lambda samples: scores, Metrics())
    for _ in range(2):
        answer = batcher.submit(wrote("a", "b", "c")).result(10)
        assert answer.explanations == [{"1": [2, 3]}, {"path": "?"}, {"nested": {"deep": [None, 0.5]}}]
        assert answer.model_dump_json()
    assert batcher.close(10)


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), MemoryError(), ValueError("caf\ud800")])
def test_the_thread_continues_after_any_exception(raised: BaseException):
    def reward(samples: Sequence[Sample]) -> list[float]:
        if samples[0].text == "bad":
            raise raised
        return [1.0]

    batcher = Batcher("r", reward, Metrics())
    answer = batcher.submit(wrote("bad")).result(10)
    assert answer.failed == [0]
    assert answer.error == f"{type(raised).__name__}: {raised}".replace("\ud800", "?")
    assert batcher.submit(wrote("good")).result(10).values == [1]
    assert batcher.close(10)


def test_closing_does_not_wait_for_ever(reward: Recording):
    batcher = Batcher("r", reward, Metrics())
    batcher.submit(wrote("a"))
    reward.begun.wait(10)
    assert not batcher.close(0.01)
    reward.go.set()


def test_groups_of_different_requests_stay_separate():
    requests = [wrote("a", "b", group=7) + wrote("c", group=1), wrote("d", group=7)]
    assert [sample.group for sample in merge_requests(requests)] == [0, 0, 1, 2]
    assert [sample.group for sample in merge_requests(requests[:1])] == [7, 7, 1]
