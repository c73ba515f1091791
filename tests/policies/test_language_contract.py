"""The laws of a policy on tiny language models, full and with LoRA: four families daily, all nightly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.policies.contract import Subject
from tests.policies.families import Law, families, laws
from tests.policies.tiny_language import parameters_of, policy_of, prompts_of
from tests.tiny.language_models import TINY

FULL: dict[str, Any] = {}
LORA: dict[str, Any] = {"lora": {"rank": 2, "alpha": 2.0}}
GAP = 1e-6


def subject(name: str, settings: dict[str, Any]) -> Subject:
    return Subject(
        make=lambda batch: policy_of(name, batch=batch, **settings),
        parameters=parameters_of,
        prompts=prompts_of(name),
        gap=GAP,
        rounding=2e-6,
        min_trained_frac=0.6,  # LLaVA-NeXT reads the last vision layer but one
    )


@pytest.mark.first_case
@pytest.mark.each_value
@pytest.mark.parametrize("name", families("language", TINY))
@laws(full=FULL, lora=LORA)
def test_the_laws(name: str, law: Law, settings: dict[str, Any]) -> None:
    law(subject(name, settings))
