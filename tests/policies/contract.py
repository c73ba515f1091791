"""The laws of every policy, under the names of these tests."""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo import testing
from mmgrpo.testing import GRADIENT_ROUNDING as GRADIENT_ROUNDING
from mmgrpo.testing import GROUP_SIZE as GROUP_SIZE
from mmgrpo.testing import SEED as SEED
from mmgrpo.testing import Subject as Subject
from mmgrpo.testing import check_every_decision_once as check_every_decision_once
from mmgrpo.testing import check_gradients as check_gradients
from mmgrpo.testing import check_on_policy_gap as check_on_policy_gap
from mmgrpo.testing import check_plans as check_plans
from mmgrpo.testing import check_prompt_ids as check_prompt_ids
from mmgrpo.testing import check_prompt_independence as check_prompt_independence
from mmgrpo.testing import check_ratio_of_read_rows as check_ratio_of_read_rows
from mmgrpo.testing import check_reference as check_reference
from mmgrpo.testing import check_replayed_rows as check_replayed_rows
from mmgrpo.testing import check_rows_and_batches as check_rows_and_batches
from mmgrpo.testing import check_save_and_load as check_save_and_load
from mmgrpo.testing import check_seeds as check_seeds
from mmgrpo.testing import check_states as check_states
from mmgrpo.testing import check_values as check_values
from mmgrpo.testing import counts as counts
from mmgrpo.testing import gradients as gradients
from mmgrpo.testing import largest_difference as largest_difference
from mmgrpo.testing import move as move
from mmgrpo.testing import relative_difference as relative_difference
from mmgrpo.testing import sample_difference as sample_difference
from mmgrpo.testing import values as values
from mmgrpo.types import Plan, Sample


def check_emitted_samples(subject: Subject) -> None:
    """As the law, and in several portions, so that rewards score samples while others are generated."""
    portions: list[Sequence[Sample]] = []
    subject.rollout(subject.make(1), Plan(on_samples=portions.append))
    assert len(portions) > 1
    testing.check_emitted_samples(subject)
