"""A number of every shipped method, worked out by hand: what the file as a whole makes of a few rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from mmgrpo.algorithm import Algorithm, answer_weight_of, prompt_sampler
from mmgrpo.config.loading import CONFIGS, find_config, read_layers, shipped
from mmgrpo.data.samplers import Pool
from mmgrpo.maths.strategies import Request, Round, Setting
from mmgrpo.memory import Memory
from mmgrpo.types import Prompt
from tests.configs import pins, test_method_numbers, test_reward_pins
from tests.configs.method_steps import Step, config_of, taught
from tests.configs.pins.rows import ONE_OF_FOUR
from tests.methods.sampling.test_treerpo import CREDIT as TREERPO

METHODS = Path(__file__).parents[1] / "methods"
AS_TRL = {name for name in shipped("methods") if read_layers(find_config(name))["method"].get("trl")}
BESIDE = {
    path.stem
    for path in CONFIGS.glob("methods/*/*.yaml")
    if (METHODS / path.parent.name / f"test_{re.sub('-+', '_', path.stem)}.py").exists()
}
"""Methods with a file of tests in ``tests/methods``, in the folder of their YAML file."""

ELSEWHERE = {
    *pins.ELSEWHERE,
    *test_method_numbers.LOSSES,
    *test_reward_pins.PINS,
    *(name.removeprefix("methods/") for name in AS_TRL),
}
"""Methods that another test has numbers of: those that draw, and those that TRL has, whose losses are compared."""


def test_every_method_has_a_number() -> None:
    assert {name.removeprefix("methods/") for name in shipped("methods")} == {*BESIDE, *ELSEWHERE}


def test_the_expert_is_heard_where_the_group_fails() -> None:
    (expert,) = config_of("mm-helix").auxiliary
    weight_P = answer_weight_of(expert)(torch.tensor([0.0, 0.5]))
    assert (expert.weight * weight_P).tolist() == [1.0, 0.0]


def test_stored_samples_count_by_their_share() -> None:
    """256 stored rows at 0.01 beside 128 prompts of 16 samples: 0.01 * 256 / 2048 of the mean over those."""
    config = config_of("dph-rl")
    (stored,) = config.auxiliary
    assert stored.weight == pytest.approx(0.00125)
    assert stored.batch_size == 256 // 2


def test_the_filter_keeps_the_largest_half() -> None:
    advantages = taught(config_of("cppo"), Step(reward=ONE_OF_FOUR))
    assert advantages.mask_BT.any(1).tolist() == [True, True, False, False]


def test_each_decision_of_a_tree_trains_once() -> None:
    advantages = taught(config_of("treerpo"), TREERPO[0])
    assert advantages.mask_BT.tolist() == [[True] * 3, [False, True, True], [True] * 3, [False, True, True]]


@pytest.mark.parametrize("name", ["dapo", "clip-cov", "greso", "kl-cov", "klear-gppo", "nft", "prorl"])
def test_what_is_missing_is_drawn_again(name: str) -> None:
    """Of two groups one has rewards that differ: one further prompt is asked for, and the first group is kept."""
    strategy, setting = Algorithm.of(config_of(name)).strategy, Setting(step=0, num_prompts=2, group_size=2)
    first = Round(
        requests=strategy.ask((), setting),
        request_B=torch.tensor([0, 0, 1, 1]),
        prompt_B=torch.tensor([0, 0, 1, 1]),
        member_B=torch.tensor([0, 1, 0, 1]),
        reward_B=torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64),
        valid_B=torch.ones(4, dtype=torch.bool),
        length_B=torch.ones(4, dtype=torch.long),
        finished_B=torch.ones(4, dtype=torch.bool),
    )
    assert strategy.ask([first], setting) == (Request(prompt=2, members=(0, 1)),)
    assert strategy.kept([first], setting)[0].tolist() == [False, False, True, True]


def test_the_curriculum_opens() -> None:
    """Of 200 prompts 2 are open at first, round(200 (0.01 + 0.99 / 2)) = 101 halfway."""
    config = config_of("competence-curriculum")
    assert config.prompts is not None
    assert config.prompts.sampler is not None
    sampler = prompt_sampler(config.prompts.sampler)
    prompts = [Prompt(str(n), columns={"difficulty": 200 - n}) for n in range(200)]
    pool = Pool(tuple(prompt.text for prompt in prompts), prompts)
    memory = Memory().declared(sampler.columns)
    assert set(sampler.draw(memory, 0, pool, 2, 0)) == {198, 199}
    assert set(sampler.draw(memory, 50, pool, 101, 0)) == set(range(99, 200))


def test_settled_prompts_are_skipped() -> None:
    """A prompt that was all right at three visits in a row stays in with probability 0.125: of 4,000 about 500."""
    config = config_of("greso")
    assert config.prompts is not None
    assert config.prompts.sampler is not None
    sampler = prompt_sampler(config.prompts.sampler)
    keys = tuple(str(n) for n in range(8000))
    memory = Memory().declared(sampler.columns)
    memory = memory.write("right_streak", keys[:4000], torch.full((4000,), 3))
    drawn = sampler.draw(memory, 0, Pool(keys, [Prompt(key) for key in keys]), 4500, 0)
    assert sum(place < 4000 for place in drawn) == pytest.approx(500, abs=60)


def test_the_reference_is_reset() -> None:
    reference = config_of("prorl").reference
    assert reference is not None
    assert (reference.reset_every, reference.reset_optimizer) == (250, True)
