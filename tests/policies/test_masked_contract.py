"""The laws of a policy on tiny masked models, drawn and read, in full and with LoRA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmgrpo.types import Plan
from tests.policies import contract
from tests.policies.contract import Subject
from tests.policies.families import families
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
full_and_lora = pytest.mark.parametrize("settings", [FULL, LORA, GUIDED], ids=["full", "lora", "guided"])


@every_family
@full_and_lora
def test_on_policy_gap(name: str, settings: dict[str, Any]) -> None:
    contract.check_on_policy_gap(subject(name, **settings))


@every_family
def test_on_policy_gap_in_a_window(name: str) -> None:
    contract.check_on_policy_gap(subject(name, **GUIDED), Plan(stochastic=(1, 2)))


@every_family
@full_and_lora
def test_gradients(name: str, settings: dict[str, Any]) -> None:
    contract.check_gradients(subject(name, **settings))


@every_family
def test_rows_and_batches(name: str) -> None:
    contract.check_rows_and_batches(subject(name))


@every_family
def test_seeds(name: str) -> None:
    contract.check_seeds(subject(name))


@every_family
def test_every_decision_once(name: str) -> None:
    contract.check_every_decision_once(subject(name))


@every_family
def test_prompt_ids(name: str) -> None:
    contract.check_prompt_ids(subject(name))


@every_family
def test_hand_over(name: str) -> None:
    contract.check_hand_over(subject(name))


@every_family
@full_and_lora
def test_reference(name: str, settings: dict[str, Any]) -> None:
    contract.check_reference(subject(name, **settings))


@every_family
@full_and_lora
def test_save_and_load(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    contract.check_save_and_load(subject(name, **settings), tmp_path)
