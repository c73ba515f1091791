"""A number of every shipped method that is made by its rewards, by hand: what the file as a whole makes of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.scoring import NamedReward
from mmgrpo.training.build import build_rewards
from mmgrpo.training.compute_advantages import combine_rewards, group_advantages
from mmgrpo.types import Prompt, Sample, Scores
from tests.configs.method_steps import config_of
from tests.rewards.grouped import column_score, plain

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a method is given, and what comes of it.

    Attributes:
        samples: of one group, which its rewards are asked about; empty: they are not.
        scores: what its rewards gave in place of being asked, a row a sample.
        groups: of the rows of scores; None: all are of one.
        rewards: what the rewards of each sample come to.
        advantages: of each sample; empty: not looked at.
    """

    samples: Sequence[Sample] = ()
    scores: Rows = ()
    groups: Sequence[int] | None = None
    rewards: Sequence[float]
    advantages: Sequence[float] = field(default=())


def wrote(*texts: str, **fields: Sequence[Any]) -> list[Sample]:
    """A group that wrote these texts, where the right answer is 7; fields are lists of theirs."""
    return [
        Sample(
            Prompt("q", columns={"answer": "7"}),
            group=0,
            member=member,
            text=text,
            **{name: values[member] for name, values in fields.items()},
        )
        for member, text in enumerate(texts)
    ]


PINS: dict[str, Given] = {
    # right are half of those with a construction and none of those without: 1/2 of it for each
    "geometryzero": Given(
        samples=wrote(r"<aux></aux> \boxed{7}", r"<aux></aux> \boxed{8}", r"\boxed{8}", r"\boxed{9}"),
        rewards=(1.5, 0.5, 0.0, 0.0),
    ),
    # mean 1.5, deviations 1.5 and -0.5, of standard deviation 1
    "intuitor": Given(
        samples=wrote(*"abcd", values=[{"certainty": value} for value in (3.0, 1.0, 1.0, 1.0)]),
        rewards=(3.0, 1.0, 1.0, 1.0),
        advantages=(1.5, -0.5, -0.5, -0.5),
    ),
    # ranks 3, 2, 1, 0 from the least likely on: 1 - 0.25 * 3 / 4 and 1 - 0.25 / 4 of those that are right
    "unlikeliness-reward": Given(
        samples=wrote("7", "8", "7", "8", logprob=[-1.0, -2.0, -3.0, -4.0]), rewards=(0.8125, 0.0, 0.9375, 0.0)
    ),
    # 2 of right ones, and -mean log p up to a third
    "cde": Given(
        samples=wrote(*[r"\boxed{7}"] * 2, *[r"\boxed{8}"] * 2, logprob=[-0.1, -2.0, -0.25, -0.5]),
        rewards=(2.1, 2.333333, 0.25, 0.333333),
    ),
    # of four pairs of words each, the third has "boxed 7" in common with the first two, 1 of 7: 1 + 1 + 1/7, 1 + 2/7
    "dra-grpo": Given(
        samples=wrote(r"so it is \boxed{7}", r"so it is \boxed{7}", r"\boxed{7} must be right", "no answer here"),
        rewards=(7 / 15, 7 / 15, 7 / 9, 0.0),
    ),
    # three of four with one form: 1 + (4 / 3 - 1), 1 + (4 - 1)
    "arm": Given(
        samples=wrote(*["<COT> <answer>7</answer>"] * 2, "<COT> <answer>8</answer>", "<CODE> <answer>7</answer>"),
        rewards=(4 / 3, 4 / 3, 0.0, 4.0),
    ),
    # of the first's two formulas one is its own, of the second's four three, for which 0.42 is the most
    "diver": Given(
        samples=wrote(r"$a$ $b$ \boxed{7}", r"$a$ $c$ $d$ $e$ \boxed{7}", r"$a$ \boxed{7}", r"$f$ \boxed{8}"),
        rewards=(1.42, 1.42, 1.0, 0.0),
    ),
    # two wordings: the second text has one word of two and no pair in common with the others, sqrt(1/2 * 1/2)
    "ps-grpo": Given(
        samples=wrote("red fox", "red cat", "red fox", "red fox", context=[None, None, "second", "second"]),
        rewards=(1.0, 0.5, 0.75, 0.75),
    ),
    # right and of the form, with half the length; wrong, with all of it; neither, with a quarter too much
    "curriculum-grpo": Given(
        samples=wrote(
            r"<think>six</think><answer>\boxed{7}</answer>",
            r"<think>six</think><answer>\boxed{8}</answer>",
            "no",
            tokens=[[1] * 128, [1] * 256, [1] * 320],
        ),
        rewards=(0.85, 0.4, 0.225),
    ),
    # shares of four
    "empo": Given(samples=wrote(r"\boxed{7}", r"so \boxed{7}", r"\boxed{8}", "none"), rewards=(0.5, 0.5, 0.25, 0.25)),
    # H = 0.5 log 2 + 0.5 log 4 = 1.0397208 of log 3 = 1.0986123 is 0.9463946, times 0.75
    "ttrv": Given(samples=wrote("7", "7", "8", "9"), rewards=(-0.209796, -0.209796, -0.459796, -0.459796)),
    # 0.9 / 0.7 and -0.1 / 0.7, less their mean 0.5714286
    "noisy-verifiers": Given(samples=wrote("7", "8"), rewards=(1.285714, -0.142857), advantages=(0.714286, -0.714286)),
    # the reasoning counts where the outcome is 1
    "p-grpo": Given(scores=[[1.0, 0.75], [1.0, 0.25], [0.0, 0.5]], rewards=(1.75, 1.25, 0.0)),
    "reward-model-ensembles": Given(
        scores=[[1.0, 3.0], [2.0, 0.0], [1.0, 1.0], [0.0, 5.0]], rewards=(1.0, 0.0, 1.0, 0.0)
    ),
    # z = 0.5 / 0.7072068 = 0.7070068; sums z, -z and 2 z, -2 z, of standard deviation z sqrt(10 / 3) = 1.2908119
    "gdpo": Given(
        scores=[[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]],
        groups=[0, 0, 1, 1],
        rewards=(1.0, 0.0, 2.0, 0.0),
        advantages=(0.547680, -0.547680, 1.095360, -1.095360),
    ),
}


@pytest.mark.parametrize("name", PINS)
def test_rewards_and_advantages(name: str) -> None:
    given, config = PINS[name], config_of(name)
    rewards = build_rewards(config.rewards) or [NamedReward(label, column_score) for label in ("first", "second")]
    said = given.scores or list(zip(*(plain(reward.function(given.samples)) for reward in rewards), strict=True))
    scores = Scores(
        names=tuple(reward.name for reward in rewards),
        weight_R=torch.tensor([reward.weight for reward in rewards]),
        value_BR=torch.tensor(said),
        valid_BR=torch.ones(len(said), len(rewards)).bool(),
    )
    group_B = torch.tensor(given.groups or [0] * len(said))
    total_B = combine_rewards(
        scores, group_B, reward_functions=rewards, chain=Algorithm.of(config).advantages, step=0
    ).reward_B
    torch.testing.assert_close(total_B, torch.tensor(given.rewards, dtype=torch.float64), rtol=0, atol=2e-6)
    if given.advantages:
        advantage_B = group_advantages(scores, group_B, Algorithm.of(config).advantages).advantage_B
        torch.testing.assert_close(advantage_B, torch.tensor(given.advantages), rtol=0, atol=3e-6)
