"""The laws of a policy on tiny models that draw out of tokens, guided: on Janus each time, on all by night."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.policies import contract
from tests.policies.contract import Subject
from tests.policies.families import families
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


every_family = pytest.mark.parametrize("name", families("image_tokens", FAMILIES))
full_and_lora = pytest.mark.parametrize("settings", [FULL, LORA], ids=["full", "lora"])


@every_family
@full_and_lora
def test_on_policy_gap(name: str, settings: dict[str, Any]) -> None:
    contract.check_on_policy_gap(subject(name, settings))


@every_family
@full_and_lora
def test_gradients(name: str, settings: dict[str, Any]) -> None:
    contract.check_gradients(subject(name, settings))


@every_family
def test_rows_and_batches(name: str) -> None:
    contract.check_rows_and_batches(subject(name, FULL))


@every_family
def test_seeds(name: str) -> None:
    contract.check_seeds(subject(name, FULL))


@every_family
def test_every_decision_once(name: str) -> None:
    contract.check_every_decision_once(subject(name, FULL))


@every_family
def test_prompt_ids(name: str) -> None:
    contract.check_prompt_ids(subject(name, FULL))


@every_family
def test_hand_over(name: str) -> None:
    contract.check_hand_over(subject(name, FULL))


@every_family
@full_and_lora
def test_reference(name: str, settings: dict[str, Any]) -> None:
    contract.check_reference(subject(name, settings))


@every_family
@full_and_lora
def test_save_and_load(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    contract.check_save_and_load(subject(name, settings), tmp_path)
