"""The laws of a policy on tiny masked models, drawn and read, in full and with LoRA."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.types import Plan
from tests.policies import contract
from tests.policies.contract import Subject
from tests.policies.families import Law, families, laws
from tests.policies.tiny_masked import parameters_of, policy_of, prompts_of
from tests.tiny.masked_models import TINY

FULL: dict[str, Any] = {}
LORA: dict[str, Any] = {"lora": {"rank": 2, "alpha": 2.0}}
GUIDED: dict[str, Any] = {"guidance_scale": 2.0, "decision": "reveal"}


def subject(name: str, **settings: Any) -> Subject:
    return Subject(
        make=lambda batch: policy_of(name, batch=batch, **settings),
        parameters=parameters_of,
        prompts=prompts_of(),
        gap=1e-6,
        rounding=4e-6,
        min_trained_frac=0.8,  # not reached: rows of the table of positions, and what reads what a picture lacks
    )


every_family = pytest.mark.parametrize("name", families("masked", TINY))


@every_family
@laws(full=FULL, lora=LORA, guided=GUIDED)
def test_the_laws(name: str, law: Law, settings: dict[str, Any]) -> None:
    law(subject(name, **settings))


@every_family
def test_on_policy_gap_in_a_window(name: str) -> None:
    contract.check_on_policy_gap(subject(name, **GUIDED), Plan(stochastic=(1, 2)))
