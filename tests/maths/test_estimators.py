"""What holds of every estimator: what is not there is not read, nothing given is written to, docstrings say enough."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.feedback import Feedback, SampleColumn, Scoped, Turns
from mmgrpo.maths.filters import FILTERS
from mmgrpo.maths.modulations import MODULATIONS
from mmgrpo.maths.terms import TERMS
from tests.maths.feedback_rows import feedback_of

NUMBERS: dict[str, dict[str, Any]] = {
    "self_judged": {"token": 3},
    **{
        name: {"reward": "steps"}
        for name in (
            "scoped",
            "ranks",
            "process_supervision",
            "process_returns",
            "clipped_differences",
            "segment_differences",
        )
    },
    "imitated": {"reward": "right"},
    "log_ratio": {"view": "teacher", "scale": 1.25},
    **{name: {"view": "teacher"} for name in ("excess_likelihood", "mask_outside_view", "bounded_uncertainty")},
    "returns_in_view": {"view": "teacher"},
    "kl_to_go": {"weight": 0.5, "every": 2},
    "within_divergence": {"limit": 10.0},
    "likely_answers": {"view": "teacher", "of": "right", "part": "steps"},
    "uncertain_groups": {"shares": "right"},
    "global_consistency": {"shares": "right"},
    "consistent_members": {"reward": "steps", "count": 2},
    "over_budgets": {"at": [1, 2]},
    "column_baseline": {"column": "level"},
    "column_margin": {"column": "level"},
    "column_weight": {"column": "level", "at_zero": 2.0},
    "both_ends": {"weight": 1.0},
    "among_most_efficient": {"count": 2},
    "entropy_weights": {"alpha": 1.0, "temperature": 1.0},
    "short_where_solved": {"share": 0.5, "strength": 0.5},
    "prune_depths": {"depths": [2]},
    "rank_bonus": {"rank": 1.0, "velocity": 1.0, "acceleration": 1.0},
}
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]).bool()


def feedback_for(name: str, *, junk: float) -> Feedback:
    """Ragged groups of 3, 2 and 1, a row without decisions, one without a reward; junk wherever nothing is."""
    torch.manual_seed(0)
    known_BT = (0.1 + torch.rand(6, 4)).where(MASK, junk)
    estimator = ESTIMATORS[name](**NUMBERS.get(name, {}))
    feedback = feedback_of(
        [1.0, 0.0, 0.5, 1.0, junk, 1.0],
        [0, 0, 0, 1, 1, 2],
        mask=MASK.int().tolist(),
        valid=[True, True, True, True, False, True],
        states=[[0, 1, 2, 3], [0, 1, 4, 5], [0, 6, 7, 8], [9, 10, 11, 12], [9, 13, 14, 15], [16, 17, 18, 19]],
        old_logprob=(-known_BT).tolist(),
        values=dict.fromkeys(estimator.values, known_BT),
    )
    said = Scoped(
        scope_BT=torch.tensor([0, 0, 1, -1]).expand(6, 4),
        value_BS=torch.rand(6, 2).masked_fill(torch.tensor([[False, True]]), junk),
        valid_BS=torch.tensor([[True, False]]).expand(6, 2),
    )
    return replace(
        feedback,
        token_BT=torch.tensor([1, 2, 1, 2]).expand(6, 4),
        scoped={"steps": said},
        rewards={"right": SampleColumn(value_B=feedback.reward_B, valid_B=feedback.valid_B)},
        columns={"level": torch.linspace(0, 1, 6).double()},
        remembered={"value": torch.linspace(0, 1, 6).double()},
        exchanges=Turns(given=said, keys_B_S=[["a", "b"]] * 6),
    )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_masked_values_are_not_read(name: str):
    estimator = ESTIMATORS[name](**NUMBERS.get(name, {}))
    given_BT = torch.randn(6, 4)
    kept_BT = given_BT.clone()
    found = {}
    for junk in (0.0, math.nan, math.inf):
        found[junk] = estimator.assign(feedback_for(name, junk=junk), given_BT)
        assert found[junk].shape == (6, 4)
        assert found[junk].dtype == torch.float32
        assert torch.equal(given_BT, kept_BT)
        # the fifth sample has no reward: it is not trained on, whatever it gets
        trained = [0, 1, 2, 3, 5]
        assert found[junk][trained][MASK[trained]].isfinite().all()
        assert torch.equal(found[junk][trained][MASK[trained]], found[0.0][trained][MASK[trained]])


@pytest.mark.parametrize("registry", [ESTIMATORS, FILTERS, MODULATIONS, TERMS], ids=len)
def test_docstrings_have_the_source_and_the_units(registry):
    for name, make in registry.items():
        said = inspect.getdoc(make) or ""
        assert "Units:" in said, name
        assert "Source:" in said or name == "constant", name
        parameters = inspect.signature(make).parameters.values()
        assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters), name
