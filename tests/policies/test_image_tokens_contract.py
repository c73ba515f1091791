"""The laws of a policy on tiny models that draw out of tokens, guided: on Janus each time, on all by night."""

from __future__ import annotations

from typing import Any

import pytest

from tests.policies.contract import Subject
from tests.policies.families import Law, families, laws
from tests.policies.tiny_image_tokens import parameters_of, policy_of, prompts_of
from tests.tiny.image_tokens import FAMILIES

FULL: dict[str, Any] = {}
LORA: dict[str, Any] = {"lora": {"rank": 2, "alpha": 2.0}}
GAP = 4e-6  # guidance of 3 adds up five times what a logit rounds


def subject(name: str, settings: dict[str, Any]) -> Subject:
    return Subject(
        make=lambda batch: policy_of(name, batch=batch, **settings),
        parameters=parameters_of,
        prompts=prompts_of(),
        gap=GAP,
        rounding=8e-6,
    )


@pytest.mark.parametrize("name", families("image_tokens", FAMILIES))
@laws(full=FULL, lora=LORA)
def test_the_laws(name: str, law: Law, settings: dict[str, Any]) -> None:
    law(subject(name, settings))
