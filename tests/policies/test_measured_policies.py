"""Policies with the measurements of equal ones: what makes them equal, and that they sample as a fresh one does."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmgrpo.types import Prompt
from tests.policies import tiny_language, tiny_policies
from tests.policies.tiny_language import picture
from tests.policies.tiny_policies import measurement_key

PROMPT = Prompt("a red fox", images=[picture()])
SETTINGS = {"name": "sd3", "lora": {"rank": 2}}


def test_measurements_are_of_a_function_its_settings_and_the_prompts() -> None:
    key = measurement_key(tiny_policies.policy_of, [PROMPT], SETTINGS)
    assert key == measurement_key(tiny_policies.policy_of, [Prompt("a red fox", images=[picture()])], {**SETTINGS})
    others = {
        measurement_key(tiny_language.policy_of, [PROMPT], SETTINGS),
        measurement_key(tiny_policies.policy_of, [PROMPT], {**SETTINGS, "lora": {"rank": 4}}),
        *(
            measurement_key(tiny_policies.policy_of, [prompt], SETTINGS)
            for prompt in (
                replace(PROMPT, text="a fox"),
                replace(PROMPT, images=[picture(seed=1)]),
                replace(PROMPT, columns={"steps": 2}),
            )
        ),
        measurement_key(tiny_policies.policy_of, [PROMPT, PROMPT], SETTINGS),
    }
    assert len(others - {key}) == 6


def test_functions_within_functions_raise() -> None:
    def make() -> Any: ...

    with pytest.raises((pickle.PicklingError, AttributeError), match="local object"):
        measurement_key(make, [PROMPT], {})


@pytest.mark.parametrize(("module", "name"), [(tiny_policies, "sd3"), (tiny_language, "llama")], ids=["sd3", "llama"])
def test_measured_policies_sample_as_a_fresh_one(module: Any, name: str) -> None:
    module.measured_policy_of(name)  # measures, if no test before did
    fresh, *measured = (
        policy.rollout(module.prompts_of(name), group_size=2, seed=3)
        for policy in (module.policy_of(name), module.measured_policy_of(name), module.measured_policy_of(name))
    )
    for rollout in measured:
        assert torch.equal(rollout.old_logprob_BT, fresh.old_logprob_BT)
        assert torch.equal(rollout.state_BT, fresh.state_BT)
