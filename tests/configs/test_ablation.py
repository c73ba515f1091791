"""Every shipped method on a run that it needs: without one of its mechanisms the final weights differ."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.config.loading import shipped
from tests.configs.ablation import ablations, config_of, distance, is_same, mechanism_keys, trained_weights, without
from tests.configs.ablation_runs import INERT, NOT_RUN, run_of

NAMES = [name.removeprefix("methods/") for name in shipped("methods")]
PER_COMMIT = ("gspo", "clip-cov")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [
        name if name in PER_COMMIT else pytest.param(name, marks=pytest.mark.nightly)
        for name in NAMES
        if name not in NOT_RUN
    ],
)
def test_taking_a_mechanism_away_changes_the_weights(name: str) -> None:
    result = list(ablations(name, run_of(name)))
    same = {ablation.key for ablation in result if ablation.outcome == "same"}
    assert same == set(INERT.get(name, {})), result
    assert any(ablation.outcome in ("changes", "error") for ablation in result), result


def test_reasons_are_of_existing_mechanisms() -> None:
    for name, reasons in INERT.items():
        assert name in NAMES
        assert set(reasons) <= set(mechanism_keys(name))
        assert all(reason.strip() for reason in reasons.values())


@pytest.mark.parametrize(("name", "expected"), [("gmpo", True), ("dance-grpo", True), ("flow-grpo", False)])
def test_default_numbers_of_the_scale_are_no_other_run(name: str, expected: bool) -> None:
    config = config_of(name, run_of(name))
    assert is_same(config, without(config, "advantage.scale")) == expected


@pytest.mark.nightly
def test_same_run_ends_at_the_same_weights() -> None:
    run = run_of("dapo")
    config = config_of("dapo", run)
    before, after = trained_weights(config, run)
    again_before, again = trained_weights(config, run)
    assert torch.equal(before, again_before)
    assert distance(before, after, again) == 0.0
