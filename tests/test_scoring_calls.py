"""Calls of rewards: concurrent, with a time limit, and cached."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.errors import DataError, RewardError, ShapeError
from mmgrpo.scoring import NamedReward, Scorer, reward_calls, score
from mmgrpo.scoring.cache import ENTRY_BYTES, ResultCache, fingerprints
from mmgrpo.scoring.result_parsing import FAILED, Result
from mmgrpo.types import Prompt, Sample, Score, Scores


def written(*texts: str) -> list[Sample]:
    return [Sample(Prompt("q", columns={"answer": "7"}), 0, member, text=text) for member, text in enumerate(texts)]


PAIRS = {0: 2, 1: 2}
SINGLES = dict.fromkeys(range(20), 1)
FOUR = written("a", "bb", "ccc", "dddd")


class TestExplanations:
    def test_a_score_may_replace_a_number(self):
        reward = NamedReward(
            "x", lambda samples: [Score(0.5, {"parsed": "7"}), 1.0, None, Score(float("nan"), {"a": 1})]
        )
        scores = score(FOUR, [reward, NamedReward("plain", lambda samples: [0.0] * 4)])
        assert scores.value_BR[:, 0].tolist() == [0.5, 1.0, 0.0, 0.0]
        assert scores.valid_BR[:, 0].tolist() == [True, True, False, False]
        assert scores.failures == {"x": 1, "plain": 0}
        assert scores.explanations == {"x": [{"parsed": "7"}, None, None, {"a": 1}]}
        assert scores.rows([3, 0]).explanations == {"x": [{"a": 1}, {"parsed": "7"}]}

    def test_explanations_beyond_json_are_dropped(self):
        for wrong in ({"x": object()}, {"x": float("nan")}, {"x": Image.new("L", (1, 1))}):
            with pytest.raises(DataError, match="JSON-serializable"):
                Score(1.0, wrong)
        with pytest.raises(ShapeError, match="one per sample"):
            Scores(
                names=("a",), weight_R=torch.ones(1), value_BR=torch.ones(2, 1),
                valid_BR=torch.ones(2, 1).bool(), explanations={"a": [None]},
            )  # fmt: skip


def of_pair(image, prompt):
    return float(image.width > len(prompt))


def of_images(images, prompts=None):
    return [Image.merge("RGB", image.split()).getpixel((0, 0)) for image in images]


def factory():
    return lambda images, prompts, metadata: [1.0] * len(images)


def of_pil(images, prompts, metadata, **kwargs):
    return [float(image.convert("L").getextrema()[1]) for image in images]


def of_samples(samples):
    return [1 / 0 for sample in samples]


IMAGES = [Sample(Prompt("q"), 0, member, image=Image.new("RGB", (8, 8))) for member in range(2)]
VIDEOS = [Sample(Prompt("q"), 0, member, video=[Image.new("RGB", (8, 8))] * 3) for member in range(2)]
FORMS = (
    r"A reward is {0}\(samples\), with Sample objects that have prompt and image \(PIL\), .*; "
    r"{0}\(completions, \*\*kwargs\), TRL's form, with lists by keyword; or {0}\(images, prompts, metadata\), "
    r"flow_grpo's form, with images as a tensor\. {0}\({1}\) has the names of neither of the last two, so it was "
    r"called with samples\. Write for example def {0}\(samples\): return \[my_score\(s\.image, s\.prompt\.text\) for "
    r"s in samples\] \(https://.*/how-to/own-reward/\)\."
)


class TestForms:
    @pytest.mark.parametrize(
        ("function", "samples", "message"),
        [
            (of_pair, IMAGES, r"argument: 'prompt'\. " + FORMS.format("of_pair", "image, prompt")),
            (of_images, IMAGES, r"'split'\. " + FORMS.format("of_images", "images, prompts")),
            (
                factory,
                IMAGES,
                FORMS.format("factory", "")
                + r" If factory\(\) returns the scoring function, assign its result in your module, score = factory\(\)"
                r", and name that: python:MODULE:score\. Fix the reward, ",
            ),
            (
                of_pil,
                IMAGES,
                r"of_pil\(images, prompts, metadata\) is called in flow_grpo's form, where images is a float32 tensor "
                r"\(N, 3, H, W\) with values in \[0, 1\], .*PIL images are those of a function of samples, def "
                r"of_pil\(samples\): images = \[s\.image for s in samples\]",
            ),
            (of_pil, VIDEOS, r"a float32 tensor \(N, F, 3, H, W\) of videos of F frames, with values in \[0, 1\]"),
            (of_samples, IMAGES, r"ZeroDivisionError: division by zero\. Fix the reward, "),
        ],
    )
    def test_a_first_call_that_fails_by_its_form_names_the_forms(
        self, function: Callable[..., Any], samples: Sequence[Sample], message: str
    ):
        with pytest.raises(RewardError, match=message):
            Scorer([NamedReward("x", function)]).try_out(samples)
        if "videos" not in message:
            with pytest.raises(RewardError, match=message):
                score(samples, [NamedReward("x", function)])

    def test_a_function_in_place_of_scores_is_named(self):
        returning: Any = lambda samples: of_pil  # noqa: E731
        with pytest.raises(
            RewardError,
            match=r"got a function: name the function that returns the scores",
        ):
            Scorer([NamedReward("x", returning)]).try_out(IMAGES)


class TestThreads:
    def test_concurrent_rewards_run_in_parallel(self):
        together = threading.Barrier(3, timeout=10)  # no call passes before all three have come

        def meet(samples: Sequence[Sample]) -> list[float]:
            together.wait()
            return [float(threading.current_thread() is threading.main_thread())] * len(samples)

        rewards = [
            NamedReward("a", partial(meet), concurrent=True),
            NamedReward("main", meet),
            NamedReward("b", meet, concurrent=True),
        ]
        assert score(FOUR, rewards).value_BR[0].tolist() == [0.0, 1.0, 0.0]

    def test_a_reward_declares_that_it_may(self):
        def plain(samples: Sequence[Sample]) -> list[float]:
            return [1.0] * len(samples)

        def remote(completions: Sequence[str]) -> list[float]:
            return [1.0] * len(completions)

        vars(remote)["concurrent"] = True
        assert NamedReward("r", remote).concurrent is True  # through the adapter of TRL's form
        assert NamedReward("r", partial(remote)).concurrent is True
        assert NamedReward("r", remote, concurrent=False).concurrent is False
        assert NamedReward("r", plain).concurrent is False

    def test_exceptions_on_a_thread_are_raised_unchanged(self):
        def broken(samples: Sequence[Sample]) -> list[float]:
            raise TimeoutError("the judge is away")

        reward = NamedReward("judge", broken, concurrent=True, timeout_s=60)
        with pytest.raises(RewardError, match=r"'judge' failed on 4 of 4.*TimeoutError: the judge is away") as caught:
            score(FOUR, [reward])
        assert isinstance(caught.value.__cause__, TimeoutError)

    @pytest.mark.parametrize("concurrent", [True, False])
    def test_a_call_that_takes_too_long_has_failed(self, concurrent: bool):
        leave = threading.Event()

        def stuck(samples: Sequence[Sample]) -> list[float]:
            leave.wait(30)
            return [1.0] * len(samples)

        reward = NamedReward("stuck", stuck, timeout_s=0.05, concurrent=concurrent)
        rewards = [reward, NamedReward("sound", lambda samples: [2.0] * len(samples))]
        scorer = Scorer(rewards, max_failure_frac=1.0)
        began = time.monotonic()
        scores = scorer(FOUR)
        assert time.monotonic() - began < 10
        assert scores.failures == {"stuck": 4, "sound": 0}
        assert scores.valid_BR.tolist() == [[False, True]] * 4
        assert scorer(FOUR).failures["stuck"] == 4  # still busy with the call that was given up
        with pytest.raises(RewardError, match=r"'stuck' failed on 4 of 4.*no answer within timeout_s = 0.05"):
            Scorer(rewards)(FOUR)
        leave.set()
        time.sleep(0.2)
        assert scorer(FOUR).value_BR[:, 0].tolist() == [1.0] * 4  # and now it answers again

    @pytest.mark.parametrize("concurrent", [True, False])
    def test_a_stuck_reward_uses_one_thread_for_any_number_of_calls(self, concurrent: bool):
        leave, calls = threading.Event(), []

        def stuck(samples: Sequence[Sample]) -> list[float]:
            calls.append(len(samples))
            leave.wait(60)
            return [1.0] * len(samples)

        scorer = Scorer([NamedReward("stuck", stuck, timeout_s=0.01, concurrent=concurrent)], max_failure_frac=1.0)
        before = set(threading.enumerate())  # of other tests, some of which may end meanwhile
        for _ in range(12):
            assert scorer(FOUR).failures == {"stuck": 4}
        (thread,) = set(threading.enumerate()) - before
        assert calls == [4]
        leave.set()
        thread.join(60)
        assert set(threading.enumerate()) <= before
        assert calls == [4]  # those that were given up were never begun

    @pytest.mark.parametrize("concurrent", [True, False])
    def test_a_reward_that_exits_has_failed(self, concurrent: bool):
        reward = NamedReward("leaves", lambda samples: sys.exit(0), concurrent=concurrent)
        with pytest.raises(RewardError, match=r"'leaves' failed on 4 of 4 samples.*it raised SystemExit: 0"):
            score(FOUR, [reward])
        rewards = [reward, NamedReward("sound", lambda samples: [2.0] * len(samples))]
        scores = Scorer(rewards, max_failure_frac=1.0)(FOUR)
        assert scores.failures == {"leaves": 4, "sound": 0}
        assert scores.valid_BR.tolist() == [[False, True]] * 4

    def test_trial_calls_find_only_failing_rewards(self):
        def broken(samples: Sequence[Sample]) -> list[float]:
            raise RuntimeError("scorer is down")

        Scorer([NamedReward("nan", lambda samples: [float("nan")] * len(samples))]).try_out(FOUR)
        with pytest.raises(RewardError, match=r"'broken' was called on 4 samples .* RuntimeError: scorer is down"):
            Scorer([NamedReward("broken", broken)]).try_out(FOUR)
        with pytest.raises(RewardError, match=r"'short'"):
            Scorer([NamedReward("short", lambda samples: [1.0])]).try_out(FOUR)
        Scorer([NamedReward("broken", broken)], max_failure_frac=1.0).try_out(FOUR)


class TestOverlap:
    """A rollout of two groups of two whose samples come some at a time."""

    ROLLOUT: Sequence[Sample] = tuple(
        Sample(Prompt("q"), group, member, text="ab"[group] * (member + 1)) for group in (0, 1) for member in (0, 1)
    )

    def test_rewards_on_threads_get_complete_groups_and_the_others_one_call(self):
        concurrent, after = Counting(deterministic=False), Counting(deterministic=False)
        scorer = Scorer([NamedReward("after", after), NamedReward("beside", concurrent, concurrent=True)])
        pending = scorer.open(group_sizes=PAIRS)
        a, aa, _, bb = self.ROLLOUT
        for portion in ([bb], [aa], [a]):
            pending.submit(portion)
        scores = pending.collect(self.ROLLOUT)
        assert concurrent.batches == [["a", "aa"], ["b", "bb"]]  # the second group was incomplete until the end
        assert after.batches == [["a", "aa", "b", "bb"]]
        assert scores.names == ("after", "beside")
        assert scores.value_BR.tolist() == [[1.0, 1.0], [2.0, 2.0]] * 2
        assert set(scores.duration_s) == {"after", "beside"}

    def test_equal_samples_in_different_groups_are_scored_once(self):
        same = [Sample(Prompt("q"), group, member, text="a" * (member + 1)) for group in (0, 1) for member in (0, 1)]
        reward = Counting()
        pending = Scorer([NamedReward("x", reward, concurrent=True)]).open(group_sizes=PAIRS)
        pending.submit(same[:2])
        pending.submit(same[2:])
        scores = pending.collect(same)
        assert reward.batches == [["a", "aa"]]
        assert scores.value_BR[:, 0].tolist() == [1.0, 2.0, 1.0, 2.0]
        assert scores.cached == {"x": 2}

    def test_samples_not_emitted_early_are_scored_at_the_end(self):
        reward = Counting(deterministic=False)
        pending = Scorer([NamedReward("x", reward, concurrent=True)]).open(group_sizes=PAIRS)
        pending.submit(self.ROLLOUT[2:])
        copies = [replace(sample) for sample in self.ROLLOUT[2:]]  # a policy that hands over others than it returns
        scores = pending.collect([*self.ROLLOUT[:2], *copies])
        assert reward.batches == [["b", "bb"], ["a", "aa", "b", "bb"]]
        assert scores.value_BR[:, 0].tolist() == [1.0, 2.0, 1.0, 2.0]

    def test_failures_of_a_call_are_a_share_of_the_complete_rollout(self):
        def broken(sample: Sample) -> float:
            if sample.text == "bb":
                raise OSError("away")
            return 1.0

        def scored(max_failure_frac: float) -> Scores:
            reward = NamedReward("x", Counting(broken, deterministic=False), concurrent=True)
            pending = Scorer([reward], max_failure_frac=max_failure_frac).open(group_sizes=PAIRS)
            pending.submit(self.ROLLOUT[:2])
            pending.submit(self.ROLLOUT[2:])
            return pending.collect(self.ROLLOUT)

        assert scored(0.5).valid_BR[:, 0].tolist() == [True, True, False, False]
        with pytest.raises(RewardError, match=r"'x' failed on 2 of 4.*OSError: away"):
            scored(0.25)

    def test_calls_that_wait_for_a_stuck_one_time_out_together(self, monkeypatch: pytest.MonkeyPatch):
        began, leave, clock = threading.Event(), threading.Event(), [0.0]

        def stuck(samples: Sequence[Sample]) -> list[float]:
            began.set()
            leave.wait(60)
            return [1.0] * len(samples)

        def waited(futures: object, timeout_s: float) -> None:
            clock[0] += timeout_s

        monkeypatch.setattr(reward_calls.time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(reward_calls, "wait", waited)
        rollout = [Sample(Prompt("q"), group, 0, text="a") for group in range(20)]
        reward = NamedReward("stuck", stuck, timeout_s=0.5, concurrent=True)
        pending = Scorer([reward], max_failure_frac=1.0).open(group_sizes=SINGLES)
        for sample in rollout:
            pending.submit([sample])
        assert began.wait(60)
        assert pending.collect(rollout).failures == {"stuck": 20}
        assert clock[0] == 0.5  # and not twenty limits, one after the other
        leave.set()

    @pytest.mark.nightly
    def test_a_queue_of_calls_within_their_limits_is_waited_for(self):
        def slow(samples: Sequence[Sample]) -> list[float]:
            time.sleep(0.2)
            return [1.0] * len(samples)

        rollout = [Sample(Prompt("q"), group, 0, text="a") for group in range(8)]
        pending = Scorer([NamedReward("slow", slow, timeout_s=1.0, concurrent=True)]).open(group_sizes=SINGLES)
        for sample in rollout:
            pending.submit([sample])
        scores = pending.collect(rollout)  # 1.6 s in all, none of them more than 1 s
        assert scores.failures == {"slow": 0}
        assert scores.duration_s["slow"] >= 1.6


class Counting:
    """Scores a text by its length, and records the texts of every call."""

    def __init__(
        self, values: Callable[[Sample], float] = lambda sample: len(sample.text or ""), *, deterministic: bool = True
    ) -> None:
        self.batches: list[list[str | None]] = []
        self.deterministic = deterministic
        self._values = values

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score]:
        self.batches.append([sample.text for sample in samples])
        return [Score(self._values(sample), {"text": sample.text}) for sample in samples]


class TestStoredResults:
    def test_equal_samples_are_scored_once(self):
        reward = Counting()
        scorer = Scorer([NamedReward("length", reward)])
        first = scorer(written("a", "bb", "a", "ccc"))
        again = scorer(written("bb", "dddd", "a", "a"))
        assert scorer(written("a")).cached == {"length": 1}
        assert reward.batches == [["a", "bb", "ccc"], ["dddd"]]
        assert [scores.value_BR[:, 0].tolist() for scores in (first, again)] == [[1, 2, 1, 3], [2, 4, 1, 1]]
        assert [scores.cached["length"] for scores in (first, again)] == [1, 3]
        assert again.explanations["length"] == [{"text": text} for text in ("bb", "dddd", "a", "a")]

    def test_only_where_it_is_declared_and_kept(self):
        for reward, cache_mb in (
            (NamedReward("x", Counting(), deterministic=False), 64),
            (NamedReward("x", Counting()), 0),
        ):
            scorer = Scorer([reward], cache_mb=cache_mb)
            assert scorer(written("a", "a")).cached == {}
            assert reward.function.batches == [["a", "a"]]  # pyrefly: ignore[missing-attribute]

    def test_failures_are_scored_again(self):
        values = iter([float("nan"), 5.0])
        reward = Counting(lambda sample: next(values))
        scorer = Scorer([NamedReward("x", reward)], max_failure_frac=1.0)
        assert scorer(written("a", "a")).failures == {"x": 2}
        assert scorer(written("a")).value_BR.tolist() == [[5.0]]
        assert len(reward.batches) == 2

    def test_a_failure_is_a_share_of_all_samples(self):
        def broken(sample: Sample) -> float:
            if sample.text == "new":
                raise OSError("away")
            return 1.0

        scorer = Scorer([NamedReward("x", Counting(broken))])
        scorer(written("a", "b", "c"))
        scores = scorer(written("a", "b", "c", "new"))  # a quarter, which is allowed
        assert scores.valid_BR[:, 0].tolist() == [True, True, True, False]

    def test_memory_is_bounded_and_the_longest_unused_goes(self):
        cache = ResultCache(2 * ENTRY_BYTES)
        for key in (b"1", b"2"):
            cache.put(key, Result(1.0))
        assert cache.get(b"1") == Result(1.0)
        cache.put(b"3", Result(3.0))
        cache.put(b"4", FAILED)
        assert [cache.get(key) for key in (b"1", b"2", b"3", b"4")] == [Result(1.0), None, Result(3.0), None]
        cache.put(b"5", Result(5.0, explanation={"text": "x" * ENTRY_BYTES}))  # larger than all there is
        assert len(cache) == 0

    def test_a_fingerprint_is_of_everything_but_the_place(self, tmp_path: Path):
        picture = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
        other = Image.fromarray(np.arange(1, 13, dtype=np.uint8).reshape(2, 2, 3))
        file = tmp_path / "a.png"
        picture.save(file)
        base = Sample(Prompt("q", images=(str(file),), columns={"answer": [1, "a"]}), 0, 0, text="t", tokens=[1, 2])
        different = [
            base,
            replace(base, text="u"),
            replace(base, text=None),
            replace(base, tokens=[12]),
            replace(base, tokens=None),
            replace(base, image=picture),
            replace(base, image=other),
            replace(base, video=[picture]),
            replace(base, video=[picture, picture]),
            replace(base, finished=False),
            replace(base, prompt=Prompt("q", images=(str(file),), columns={"answer": [1, "b"]})),
            replace(base, prompt=Prompt("q", images=(str(file),), columns={"answer": ["1", "a"]})),
            replace(base, prompt=Prompt("q", images=(picture,), columns={"answer": [1, "a"]})),
            replace(base, prompt=Prompt("r", images=(str(file),), columns={"answer": [1, "a"]})),
            replace(base, prompt=Prompt("q", columns={"answer": np.array([1.0])})),
            replace(base, prompt=Prompt("q", columns={"answer": torch.tensor([2.0])})),
        ]
        result = fingerprints(different)
        assert None not in result
        assert len(set(result)) == len(different)
        elsewhere = replace(base, group=3, member=5, prompt=replace(base.prompt, columns={"answer": [1, "a"]}))
        assert fingerprints([elsewhere]) == [result[0]]
        other.resize((9, 9)).save(file)
        assert fingerprints([base]) != [result[0]]  # the file is another one now
        assert fingerprints([replace(base, prompt=Prompt("q", columns={"answer": object()}))]) == [None]

    def test_samples_without_a_fingerprint_are_always_scored(self):
        reward = Counting()
        strange = [replace(sample, prompt=Prompt("q", columns={"x": object()})) for sample in written("a", "a")]
        scorer = Scorer([NamedReward("x", reward)])
        assert scorer(strange).cached == scorer(strange).cached == {"x": 0}
        assert reward.batches == [["a", "a"]] * 2
