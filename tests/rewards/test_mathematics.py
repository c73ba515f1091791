from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from decimal import Decimal

import numpy as np
import pytest
import torch
from mmgrpo.rewards.text import mathematics
from mmgrpo.rewards.text.mathematics import MathForm, MathVerify

from mmgrpo.errors import ConfigError
from tests.rewards.written import explained, scores_of, wrote

pytest.importorskip("math_verify")

PAIRS = [
    (r"so \boxed{\frac{1}{3}}", r"\frac{1}{3}"),
    (r"\boxed{0.5}", "1/2"),
    (r"\boxed{x^2+2x+1}", "$(x+1)^2$"),
    (r"The final answer is $7$.", "7"),
    (r"\boxed{\{1,2\}}", r"$\{2,1\}$"),
    (r"\boxed{5 \text{ cm}}", "5"),
    (r"\boxed{6}", "7"),
    (r"\boxed{1} then \boxed{2}", "2"),
    ("it is 1/2", "1/2"),
    ("", "3"),
    (r"\boxed{", "3"),
    (r"\boxed{2}", r"\frac{1}{"),
]


@pytest.fixture(scope="module")
def reward() -> MathVerify:
    return MathVerify(time_limit_s=20.0)


def samples_of(*pairs: tuple[str, object]):
    return [wrote(text, solution=gold) for text, gold in pairs]


def test_by_hand(reward: MathVerify, caplog: pytest.LogCaptureFixture):
    assert scores_of(reward, samples_of(*PAIRS)) == [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, None]
    assert "math-verify cannot parse 1 references completely" in caplog.text
    assert scores_of(reward, [wrote(r"\boxed{2}"), wrote(None, solution="2"), wrote(r"\boxed{2}", solution=2)]) == [
        None,
        None,
        1,
    ]


def test_as_trl_has_it(reward: MathVerify):
    accuracy = pytest.importorskip("trl.rewards").accuracy_reward
    chats = [[{"role": "assistant", "content": text}] for text, _ in PAIRS]
    assert scores_of(reward, samples_of(*PAIRS)) == accuracy(chats, [gold for _, gold in PAIRS])


def test_where_trl_reads_less(reward: MathVerify):
    """TRL 1.16 gives 0 for a half, 1 for 1\\,000 = 0, and does not score the others."""
    pairs = [
        (r"\boxed{\frac12}", "1/2", 1), (r"\boxed{\sqrt2}", r"\sqrt{2}", 1), (r"\boxed{1\,000}", "1000", 1),
        (r"\boxed{1\,000}", "0", 0), (r"\boxed{12\,000\,000}", "12000000", 1), (r"\boxed{(1,2)}", "(1,2)", 1),
        (r"\boxed{[0,1)}", "[0,1)", 1), (r"\boxed{2}", r"\sqrt2", 0), (r"\boxed{x}", "so be it", 0),
    ]  # fmt: skip
    assert scores_of(reward, samples_of(*(pair[:2] for pair in pairs))) == [value for *_, value in pairs]


def test_a_thought_holds_no_answer(reward: MathVerify):
    texts = (r"<think>\boxed{1}</think>\boxed{2}", r"<think>\boxed{2}</think>\boxed{1}", r"<think>\boxed{2}")
    assert scores_of(reward, samples_of(*((text, "2") for text in texts))) == [1, 0, 0]


def test_on_another_thread_and_in_parallel(reward: MathVerify):
    result: dict[int, list[float | None]] = {}

    def judge(number: int) -> None:
        result[number] = scores_of(reward, samples_of(*PAIRS[:7]))

    threads = [threading.Thread(target=judge, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result == {number: [1, 1, 1, 1, 1, 1, 0] for number in range(3)}


@pytest.mark.nightly
def test_timeouts_fail_on_every_thread_without_side_effects():
    reward = MathVerify(time_limit_s=2.0)
    result: list[float | None] = []
    samples = samples_of((r"\boxed{9^{9^{9^{9}}}}", "5"), (r"\boxed{2}", "2"))
    started = time.monotonic()
    thread = threading.Thread(target=lambda: result.extend(scores_of(reward, samples)))
    thread.start()
    thread.join()
    assert time.monotonic() - started < 60
    assert result == pytest.approx([math.nan, 1], nan_ok=True)


@pytest.mark.nightly
def test_a_process_that_does_not_stop_is_killed_and_another_started(monkeypatch: pytest.MonkeyPatch):
    """The worker's own alarm is not heard within one long operation of an extension: here it sets itself none."""
    monkeypatch.setattr("mmgrpo.rewards.text.mathematics.GRACE_S", -37.0)
    reward = MathVerify(time_limit_s=40.0)  # killed 3 s after it is asked, long before its own limit
    assert scores_of(reward, samples_of((r"\boxed{2}", "2"))) == [1]
    assert scores_of(reward, samples_of((r"\boxed{9^{9^{9^{9}}}}", "5"))) == pytest.approx([math.nan], nan_ok=True)
    assert scores_of(reward, samples_of((r"\boxed{2}", "2"))) == [1]


def test_rewards_use_one_process_after_each_other():
    assert scores_of(MathVerify(time_limit_s=20.0), samples_of((r"\boxed{2}", "2"))) == [1]
    idle = {process.pid for process in mathematics._IDLE[os.getpid()]}
    assert idle
    assert scores_of(MathVerify(time_limit_s=20.0), samples_of((r"\boxed{3}", "2"))) == [0]
    assert {process.pid for process in mathematics._IDLE[os.getpid()]} == idle


def test_plain_answers_are_parsed_if_configured():
    samples = samples_of(("it is 1/2", "1/2"), ("The answer is 12.", 12), (r"\boxed{3}", 4))
    assert scores_of(MathVerify(plain=True), samples) == [1, 1, 0]


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="must be positive, got 0 and 20000"):
        MathVerify(time_limit_s=0)


def test_the_parsed_answer_is_in_the_explanation(reward: MathVerify):
    assert explained(reward, wrote(r"so \boxed{\frac{1}{2}}", solution="0.5")) == {
        "parsed": r"\frac{1}{2}", "reference": "0.5",
    }  # fmt: skip
    assert explained(reward, wrote("no idea", solution="0.5")) == {"parsed": None, "reference": "0.5"}
    assert reward.deterministic


@pytest.mark.nightly
def test_its_process_ends_with_the_interpreter_without_open_files():
    program = (
        "from mmgrpo.rewards.text.mathematics import MathVerify\n"
        "from mmgrpo.types import Prompt, Sample\n"
        "sample = Sample(Prompt('q', columns={'solution': '2'}), group=0, member=0, text=r'\\boxed{2}')\n"
        "reward = MathVerify(time_limit_s=60)\n"
        "print([float(score) for score in reward([sample])])\n"
    )
    result = subprocess.run([sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[1.0]\n"
    assert "ResourceWarning" not in result.stderr


def test_references_are_complete_and_of_every_type(reward: MathVerify):
    golds = [
        7,
        7.0,
        1e-05,
        6.02e23,
        Decimal("0.5"),
        np.int64(7),
        np.float32(0.1),
        torch.tensor(7),
        ["8", "7"],
        True,
        "\\frac{1}{",
    ]
    answers = ["7", "7", "0.00001", r"6.02\times10^{23}", "1/2", "7", "0.1", "7", "7", "1", "1"]
    rights = samples_of(*((rf"\boxed{{{answer}}}", gold) for answer, gold in zip(answers, golds, strict=True)))
    wrongs = samples_of(*((r"\boxed{3}", gold) for gold in golds))
    assert scores_of(reward, rights) == [1] * 9 + [None] * 2
    assert scores_of(reward, wrongs) == [0] * 9 + [None] * 2


def test_why_a_reference_cannot_be_read(reward: MathVerify):
    assert reward.reference_error("12 34") == "it cannot be parsed completely"
    assert reward.reference_error({"a": 1}) == "it is neither a text nor a number"
    assert reward.reference_error(r"2 \sqrt { 221 }") is None


def test_words_are_no_mathematical_form():
    form = MathForm()
    texts = (r"\boxed{\frac{1}{2}}", r"\boxed{x+1}", r"\boxed{no idea}", r"\boxed{12 34}", "2")
    assert scores_of(form, [wrote(text) for text in texts]) == [1, 1, 0, 0, 0]


def test_an_answer_of_which_a_part_is_read_is_explained(reward: MathVerify):
    assert explained(reward, wrote(r"\boxed{5 \foo}", solution="5")) == {
        "parsed": r"5 \foo", "reference": "5", "reason": "the answer cannot be parsed completely",
    }  # fmt: skip
