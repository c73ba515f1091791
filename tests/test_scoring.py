from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.errors import ConfigError, DataError, RewardError
from mmgrpo.reward import Reward
from mmgrpo.samples import ToolResult, Turn
from mmgrpo.scoring import NamedReward, as_reward, score, trl_form
from mmgrpo.types import Prompt, Sample, Score


def samples_of(*texts: str, **columns: Sequence[Any]) -> list[Sample]:
    rows = [{name: values[i] for name, values in columns.items()} for i in range(len(texts))]
    return [Sample(Prompt(f"q{i}", columns=rows[i]), group=i, member=0, text=text) for i, text in enumerate(texts)]


def returning(values: Any) -> NamedReward:
    return NamedReward("fixed", lambda samples: values)


FOUR = samples_of("a", "bb", "ccc", "dddd")


class TestScores:
    def test_values_weights_and_total(self):
        length = NamedReward("length", lambda samples: [len(s.text or "") for s in samples], 0.5)
        is_b = NamedReward("is_b", lambda samples: [s.text == "bb" for s in samples], -1.0)
        scores = score(FOUR, [length, is_b])
        assert scores.names == ("length", "is_b")
        assert scores.value_BR.tolist() == [[1, 0], [2, 1], [3, 0], [4, 0]]
        assert scores.weight_R.tolist() == [0.5, -1]
        assert scores.failures == {"length": 0, "is_b": 0}

    def test_none_does_not_apply_and_is_no_failure(self):
        scores = score(FOUR, [returning([1.0, None, None, 4.0])], max_failure_frac=0.0)
        assert scores.valid_BR[:, 0].tolist() == [True, False, False, True]
        assert scores.value_BR[:, 0].tolist() == [1, 0, 0, 4]
        assert scores.scored_B.tolist() == [True, False, False, True]
        assert scores.failures == {"fixed": 0}

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39, torch.tensor(math.nan)])
    def test_values_that_are_not_finite_are_masked_and_counted(self, bad: Any, caplog: pytest.LogCaptureFixture):
        scores = score(FOUR, [returning([1.0, bad, None, 0.0])])
        assert scores.valid_BR[:, 0].tolist() == [True, False, False, True]
        assert scores.failures == {"fixed": 1}
        assert "'fixed' gave NaN or infinity for 1 of 4 samples" in caplog.text

    @pytest.mark.parametrize(
        "values",
        [
            (0.25, 1, 0, 2),
            np.array([0.25, 1, 0, 2]),
            [np.float32(0.25), np.int64(1), np.bool_(False), np.float64(2)],
            torch.tensor([0.25, 1, 0, 2], requires_grad=True),
            [torch.tensor(0.25), torch.tensor([1.0]), torch.tensor(0), torch.tensor(2, dtype=torch.bfloat16)],
        ],
    )
    def test_any_kind_of_number_will_do(self, values: Any):
        scores = score(FOUR, [returning(values)])
        assert scores.value_BR.dtype == torch.float32
        assert scores.value_BR[:, 0].tolist() == [0.25, 1, 0, 2]
        assert not scores.value_BR.requires_grad

    def test_each_reward_is_called_once_with_all_samples(self):
        arguments = []
        score(FOUR, [NamedReward("spy", lambda samples: arguments.append(list(samples)) or [0.0] * 4)])
        assert arguments == [FOUR]


class TestFailures:
    def broken(self, samples: Sequence[Sample]) -> list[float]:
        raise TimeoutError("no answer in 10 s")

    def test_a_reward_that_raises_stops_the_run_with_its_message(self):
        expected = (
            r"'ocr' failed on 4 of 4 samples \(100%\).*at most 25%.*TimeoutError: no answer in 10 s"
            r".*runtime.max_reward_failure_frac"
        )
        with pytest.raises(RewardError, match=expected) as caught:
            score(FOUR, [NamedReward("ocr", self.broken)])
        assert isinstance(caught.value.__cause__, TimeoutError)

    def test_where_that_is_allowed_it_is_masked_and_explained_once(self, caplog: pytest.LogCaptureFixture):
        rewards = [NamedReward("flaky", self.broken), NamedReward("sound", lambda samples: [1.0] * 4)]
        scores = score(FOUR, rewards, max_failure_frac=1.0)
        score(FOUR, rewards, max_failure_frac=1.0)
        assert scores.valid_BR.tolist() == [[False, True]] * 4
        assert scores.failures == {"flaky": 4, "sound": 0}
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert [record.exc_info is not None for record in warnings] == [True, False]
        assert "'flaky' raised TimeoutError: no answer in 10 s; its 4 samples are masked" in warnings[1].getMessage()

    def test_the_limit_is_on_the_share_and_inclusive(self):
        partial = returning([math.nan, 1.0, 1.0, 1.0])
        assert score(FOUR, [partial], max_failure_frac=0.25).failures == {"fixed": 1}
        with pytest.raises(RewardError, match=r"failed on 1 of 4 samples \(25%\).*at most 20%.*NaN or infinity"):
            score(FOUR, [partial], max_failure_frac=0.2)

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            ([1.0], "'fixed': expected 4 values, one per sample in order, got 1"),
            ([1.0] * 5, "expected 4 values, one per sample in order, got 5"),
            (None, "expected a sequence of 4 numbers or None, got None; is a return missing"),
            (3.0, "expected a sequence of 4 numbers or None, got 3.0 of type float"),
            ("good", "got 'good' of type str"),
            ({"reward": 1.0}, "of type dict"),
            ([1.0, "2", 3.0, 4.0], "number or None, got '2' of type str"),
            ([1.0, [2.0], 3.0, 4.0], r"number or None, got \[2.0\] of type list"),
        ],
    )
    def test_a_malformed_answer_stops_at_once(self, returned: Any, message: str):
        with pytest.raises(RewardError, match=message):
            score(FOUR, [returning(returned)], max_failure_frac=1.0)

    def test_names_and_weights_are_checked(self):
        with pytest.raises(ConfigError, match=r"own name, got \['fixed', 'fixed'\]"):
            score(FOUR, [returning([0.0] * 4), returning([1.0] * 4)])
        with pytest.raises(ConfigError, match="one or more"):
            score(FOUR, [])
        with pytest.raises(ConfigError, match="'x' must be a finite number, got nan"):
            NamedReward("x", self.broken, math.nan)
        with pytest.raises(ConfigError, match="non-empty name"):
            NamedReward("", self.broken)


class TestTrlForm:
    def test_gets_prompts_completions_and_columns_as_lists(self):
        def exact(prompts, completions, answer, **columns):
            assert prompts == ["q0", "q1"]
            assert columns["level"] == [3, 5]
            assert columns["completion_ids"] == [None, None]
            return [float(c == a) for c, a in zip(completions, answer, strict=True)]

        samples = samples_of("yes", "no", answer=["yes", "yes"], level=[3, 5])
        assert score(samples, [NamedReward("exact", exact)]).value_BR[:, 0].tolist() == [1.0, 0.0]

    def test_only_named_arguments_are_passed(self):
        def length(completions):
            return [len(completion) for completion in completions]

        assert as_reward(length)(samples_of("a", "bb", answer=[1, 2])) == [1, 2]

    def test_a_sample_without_a_required_column_is_left_out(self):
        def exact(completions, answer):
            return [float(c == a) for c, a in zip(completions, answer, strict=True)]

        samples = samples_of("yes", "no", answer=["yes", "no"])
        samples.insert(1, Sample(Prompt("of another task"), group=2, member=0, text="None"))
        assert as_reward(exact)(samples) == [1.0, None, 1.0]

    def test_an_optional_column_is_none_where_it_is_missing(self):
        def optional(completions, answer=None):
            return [None if a is None else 1.0 for a in answer or completions]

        samples = [*samples_of("yes", answer=["yes"]), *samples_of("no")]
        assert as_reward(optional)(samples) == [1.0, None]

    def test_a_column_that_no_prompt_has_warns(self, caplog: pytest.LogCaptureFixture):
        def exact(completions, solution):
            raise AssertionError("has nothing to judge")

        assert as_reward(exact)(samples_of("yes", answer=["yes"])) == [None]
        assert (
            "exact applies to no sample: it requires columns ('solution',), the prompts have ['answer']" in caplog.text
        )

    def test_chat_completions_are_messages_and_images_are_images(self, tmp_path: Path):
        Image.new("L", (2, 2), 7).save(tmp_path / "a.png")
        turns = [{"role": "user", "content": "how many?"}]
        picture = Image.new("L", (2, 2))
        chat = Sample(Prompt("how many?", images=[tmp_path / "a.png"], messages=turns), 0, 0, text="")
        image = Sample(Prompt("a cat"), 1, 0, image=picture, tokens=[4])
        video = Sample(Prompt("a dog"), 2, 0, video=[picture])
        arguments: dict[str, Any] = {}

        def spy(completions, **columns):
            arguments.update(columns, completions=completions)
            return [0.0] * len(completions)

        as_reward(spy)([chat, image, video])
        assert arguments["completions"] == [[{"role": "assistant", "content": ""}], picture, [picture]]
        assert arguments["prompts"] == [turns, "a cat", "a dog"]
        assert [[image_of_row.getpixel((0, 0)) for image_of_row in images] for images in arguments["images"]] == [
            [(7, 7, 7)],
            [],
            [],
        ]
        assert "image" not in arguments
        assert arguments["completion_ids"] == [None, [4], None]

    def test_a_function_that_names_the_image_gets_the_first(self):
        prompt = Prompt("which?", images=[Image.new("L", (2, 2), 7), Image.new("L", (2, 2), 9)])
        samples = [Sample(prompt, 0, 0, text="a"), Sample(prompt, 0, 1, text="b"), Sample(Prompt("x"), 1, 0, text="c")]

        def reads(completions, image, **columns):
            return [-1 if image_of_row is None else image_of_row.getpixel((0, 0))[0] for image_of_row in image]

        assert as_reward(reads)(samples) == [7, 7, -1]

    def test_images_are_opened_only_on_access(self):
        samples = [Sample(Prompt("which?", images=["absent.png"]), 0, 0, text="a")]
        assert as_reward(lambda completions, **columns: [len(columns["images"][0])])(samples) == [1]
        with pytest.raises(DataError, match=r"absent.png cannot be opened"):
            as_reward(lambda completions, images: [images[0][0].width])(samples)

    def test_a_wrong_count_names_the_reward(self):
        def short(completions):
            return [1.0]

        with pytest.raises(RewardError, match="'short': expected 4 values, one per sample in order, got 1"):
            score(FOUR, [NamedReward("short", short)])

    def test_our_own_form_passes_through(self):
        def reward(samples):
            return [0.0 for _ in samples]

        assert as_reward(reward) is reward
        assert as_reward(max) is max  # a builtin without a signature


def chats_of(*texts: str, **columns: Sequence[Any]) -> list[Sample]:
    """As ``samples_of``, with chat prompts and a token per character."""
    turns = [{"role": "user", "content": "What is it?"}]
    return [
        replace(
            sample, prompt=replace(sample.prompt, messages=turns), tokens=[ord(letter) for letter in sample.text or ""]
        )
        for sample in samples_of(*texts, **columns)
    ]


class TestTrlItself:
    """The real functions of trl.rewards, as they are."""

    trl = pytest.importorskip("trl.rewards")

    def test_format_and_lengths(self):
        good, bad = "<think>\nso\n</think>\n5", "<think>so 5"
        rewards = [
            NamedReward("format", self.trl.think_format_reward),
            NamedReward("overlong", self.trl.get_soft_overlong_punishment(max_completion_len=20, soft_punish_cache=10)),
            NamedReward("repetition", self.trl.get_repetition_penalty_reward(ngram_size=2)),
        ]
        # 22 characters are beyond 20; 11 are 1 over 10 of 10. No pair of characters twice but in "aaaaa": 1 of 4
        scores = score(chats_of(good, bad, "aaaaa"), rewards)
        assert scores.value_BR[:, 0].tolist() == [1, 0, 0]
        assert scores.value_BR[:, 1].tolist() == pytest.approx([-1, -0.1, 0])
        assert scores.value_BR[2, 2] == -0.75
        assert scores.valid_BR.all()

    def test_accuracy(self):
        pytest.importorskip("math_verify")
        samples = chats_of(r"\boxed{\frac{1}{2}}", r"\boxed{3}", r"\boxed{3}", solution=["0.5", "4", "no idea"])
        scores = score(samples, [NamedReward("accuracy", self.trl.accuracy_reward)])
        assert scores.valid_BR[:, 0].tolist() == [True, True, False]
        assert scores.value_BR[:, 0].tolist() == [1, 0, 0]
        assert scores.failures == {"accuracy": 0}

    def test_plain_prompts_are_named_as_the_reason(self):
        with pytest.raises(RewardError, match=r"think_format_reward reads completions as chat messages.*as messages"):
            score(samples_of("<think>a</think>"), [NamedReward("format", self.trl.think_format_reward)])

    def test_prompts_with_images_are_as_trl_prepares_them(self):
        prepare = pytest.importorskip("trl.data_utils").prepare_multimodal_messages
        picture, other = Image.new("RGB", (2, 2)), Image.new("RGB", (3, 3))
        parts = [{"type": "image"}, {"type": "text", "text": "or"}, {"type": "image"}]
        plain = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "How many?"}]
        prompts = [
            Prompt("q", images=[picture, other], messages=plain),
            Prompt("q", images=[picture, other], messages=[{"role": "user", "content": parts}]),
            Prompt("q", messages=plain),
        ]
        arguments: list[Any] = []

        def spy(prompts, completions, image, **columns):
            arguments.extend([prompts, image])
            return [0.0] * len(prompts)

        as_reward(spy)([Sample(prompt, i, 0, text="") for i, prompt in enumerate(prompts)])
        assert arguments[0] == [prepare(p.messages, p.images) for p in prompts[:2]] + [plain]
        assert arguments[1] == [picture, picture, None]
        assert parts[0] == {"type": "image"}  # what the policy reads is not written to


class TestTrlFormsOfSignature:
    def test_only_keywords_or_only_tokens(self):
        def keywords(**columns):
            return [len(completion) for completion in columns["completions"]]

        def tokens(completion_ids, **columns):
            return [len(ids) for ids in completion_ids]

        assert as_reward(keywords)(samples_of("a", "bb")) == [1, 2]
        assert as_reward(tokens)(chats_of("a", "bb")) == [1, 2]

    def test_coroutines_are_run_within_a_loop_as_well(self):
        async def judge(completions: Any, **columns: Any) -> Any:
            await asyncio.sleep(0)
            return [float(len(completion)) for completion in completions]

        async def notebook() -> list[float]:
            return score(samples_of("a", "bb"), [NamedReward("judge", as_reward(judge))]).value_BR[:, 0].tolist()

        assert as_reward(judge)(samples_of("a", "bb")) == [1, 2]
        assert asyncio.run(notebook()) == [1, 2]

    def test_coroutines_on_several_threads_start_one_event_loop(self, monkeypatch: pytest.MonkeyPatch):
        """Both threads call before the loop, which takes a moment to create, exists."""
        create, both = asyncio.new_event_loop, threading.Barrier(2)

        def create_later() -> asyncio.AbstractEventLoop:
            time.sleep(0.2)
            return create()

        async def loop_number(completions: Any, **columns: Any) -> list[float]:
            return [float(id(asyncio.get_running_loop()))]

        def number(reward: Reward) -> Any:
            both.wait(60)
            return reward(samples_of("a"))

        trl_form._event_loop.cache_clear()
        monkeypatch.setattr(asyncio, "new_event_loop", create_later)
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(number, [as_reward(loop_number), as_reward(loop_number)])
        assert first == second

    def test_calls_in_the_format_of_a_model_are_tool_calls_and_no_content(self):
        call = '{"name": "add", "parameters": {"a": 1}}'
        prompt = Prompt("?", messages=[{"role": "user", "content": "?"}])
        replies = [Turn(role="tool", text="1", results=[ToolResult("add", "1", arguments={"a": 1})]), Turn(done=True)]
        sample = Sample(prompt, 0, 0, text=call, turn_starts=[0, 9], turn_ends=[4, 12], turn_texts=[call, "It is 1."])
        sample = replace(sample, turn_replies=replies, turn_contents=["", None])
        messages = []

        def reads(completions: Any, **columns: Any) -> list[float]:
            messages.extend(completions[0])
            return [1.0]

        assert as_reward(reads)([sample]) == [1]
        tool_calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
        assert messages[0] == {"role": "assistant", "content": "", "tool_calls": tool_calls}
        assert messages[2] == {"role": "assistant", "content": "It is 1."}
        as_reward(reads)([replace(sample, turn_contents=())])
        assert messages[3]["content"] == call  # without a response template

    def test_coroutines_of_several_rewards_wait_together(self):
        """Each of two waits for the other, on all samples at once, while a third runs that neither waits for."""
        ready: dict[str, asyncio.Event] = {"first": asyncio.Event(), "second": asyncio.Event()}
        loops, sizes = set(), []

        def reward(name: str, other: str) -> Any:
            async def meets(completions: Any, **columns: Any) -> list[float]:
                loops.add(asyncio.get_running_loop())
                sizes.append(len(completions))
                ready[name].set()
                await asyncio.wait_for(ready[other].wait(), timeout=60)
                return [float(len(completion)) for completion in completions]

            return NamedReward(name, as_reward(meets))

        rewards = [
            reward("first", "second"),
            NamedReward("plain", lambda samples: [len(sample.text) for sample in samples]),
            reward("second", "first"),
        ]
        for _ in range(2):
            assert score(samples_of("a", "bb"), rewards).value_BR.tolist() == [[1, 1, 1], [2, 2, 2]]
        assert (len(loops), sizes) == (1, [2, 2, 2, 2])

    def test_arguments_of_the_trainer(self):
        def logs(completions, log_extra, log_metric: Any = None, **columns):
            for completion in completions:
                log_extra("completion", [completion])
            log_extra("number", [math.nan, {1}, 2])
            for number in (1, 2, math.inf):
                log_metric("mean", number)
            return [1.0, None, Score(2.0, {"reason": "short"})]

        def incomplete(completions, log_extra):
            log_extra("completion", completions[1:])
            return [1.0] * len(completions)

        def scheduled(completions, trainer_state):
            raise AssertionError("is never called")

        scores = score(samples_of("a", "b", "c"), [NamedReward("logs", logs)])
        assert scores.value_BR[:, 0].tolist() == [1, 0, 2]
        assert scores.explanations["logs"] == [
            {"parts": {"completion": "a", "number": "NaN"}, "metrics": {"mean": 1.5}},
            None,
            {"parts": {"completion": "c", "number": 2}, "metrics": {"mean": 1.5}, "reason": "short"},
        ]
        assert scores.custom_metrics == {"custom/mean": 1.5}
        with pytest.raises(RewardError, match=r"log_extra\('completion'\) has 1 values for 2 samples"):
            as_reward(incomplete)(samples_of("a", "b"))
        with pytest.raises(ConfigError, match="scheduled requires trainer_state, which only mmgrpo"):
            NamedReward("scheduled", scheduled)
