"""The policy laws on the tiny pipelines, guided and unguided: on two or four per commit, on all nightly."""

from __future__ import annotations

from pathlib import Path

import pytest
from mmgrpo.policies.diffusion import DenoisingPolicy

from mmgrpo.types import Plan
from tests.policies import contract
from tests.policies.contract import Subject
from tests.policies.families import families
from tests.policies.tiny_policies import (
    NATIVE,
    VARIANCE_PRESERVING,
    measured_policy_of,
    parameters_of,
    policy_of,
    prompts_of,
)
from tests.tiny.pipelines import PIPELINES


def _subject(name: str, *, guided: bool, measures: bool = False) -> Subject:
    def make(batch: int) -> DenoisingPolicy:
        if measures:
            return policy_of(name, guided=guided, batch=batch)
        return measured_policy_of(name, guided=guided, batch=batch)

    # With these schedules a state of size 6 meets a std of 0.03: 6 * 6e-8 / 0.03 = 1e-5 for the rounding of an element,
    # times its distance from the mean in standard deviations.
    rounding = 1e-4 if name in (*VARIANCE_PRESERVING, *NATIVE) else 1e-6
    # What the last of Qwen-Image's two blocks makes of the prompt's stream reaches nothing: 4 adapters of 32.
    reached = 0.875 if name == "qwen-image" else 0.9
    return Subject(
        make=make, parameters=parameters_of, prompts=prompts_of(name), rounding=rounding, min_trained_frac=reached
    )


@pytest.fixture(params=families("denoising", PIPELINES))
def subject(request: pytest.FixtureRequest) -> Subject:
    """A guided pipeline."""
    return _subject(request.param, guided=True)


@pytest.fixture(params=families("drawing", PIPELINES))
def drawing_subject(request: pytest.FixtureRequest) -> Subject:
    """A guided pipeline, for laws of the code around it: of four calls each, they take most of the time."""
    return _subject(request.param, guided=True)


@pytest.fixture(params=[True, False], ids=["guided", "unguided"])
def guided(request: pytest.FixtureRequest) -> bool:
    """With or without guidance."""
    return request.param


@pytest.fixture(params=families("denoising", PIPELINES))
def any_subject(request: pytest.FixtureRequest, guided: bool) -> Subject:
    """A pipeline, with or without guidance, with its own measurements of batches and replays."""
    return _subject(request.param, guided=guided, measures=True)


@pytest.mark.first_case
@pytest.mark.each_value
def test_on_policy_gap_is_zero(any_subject: Subject) -> None:
    contract.check_on_policy_gap(any_subject)


@pytest.mark.nightly
def test_on_policy_gap_is_zero_with_shared_noise_and_a_window(drawing_subject: Subject) -> None:
    contract.check_on_policy_gap(drawing_subject, Plan(stochastic=(1, 2), same_initial_noise=True))


@pytest.mark.nightly
def test_every_decision_is_evaluated_once(drawing_subject: Subject) -> None:
    contract.check_every_decision_once(drawing_subject)


def test_rows_and_batches_do_not_change_evaluations(drawing_subject: Subject) -> None:
    contract.check_rows_and_batches(drawing_subject)


@pytest.mark.nightly
def test_samples_are_functions_of_their_keys(drawing_subject: Subject) -> None:
    contract.check_seeds(drawing_subject)


@pytest.mark.nightly
def test_prompt_ids_key_the_noise(drawing_subject: Subject) -> None:
    contract.check_prompt_ids(drawing_subject)


@pytest.mark.nightly
def test_samples_are_emitted_as_they_are_sampled(drawing_subject: Subject) -> None:
    contract.check_emitted_samples(drawing_subject)


@pytest.mark.first_case
def test_reference_is_the_untrained_policy(subject: Subject) -> None:
    contract.check_reference(subject)


@pytest.mark.first_case
def test_save_and_load_round_trip(subject: Subject, tmp_path: Path) -> None:
    contract.check_save_and_load(subject, tmp_path)


def test_gradients_reach_only_trained_weights(subject: Subject) -> None:
    contract.check_gradients(subject)


def test_replayed_rows_have_ratio_one(drawing_subject: Subject) -> None:
    contract.check_replayed_rows(drawing_subject)


def test_prompt_override_with_the_same_prompts_has_ratio_one(drawing_subject: Subject) -> None:
    contract.check_prompt_independence(drawing_subject)


def test_plans_are_met(drawing_subject: Subject) -> None:
    contract.check_plans(drawing_subject)


@pytest.mark.nightly
def test_states_have_the_same_decisions_before_them(drawing_subject: Subject) -> None:
    contract.check_states(drawing_subject)


def test_values_are_those_of_their_formulas(drawing_subject: Subject) -> None:
    contract.check_values(drawing_subject)
