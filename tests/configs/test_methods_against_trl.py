"""The TRL options that a method's file names: its objective is TRL's loss with them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mmgrpo.algorithm import objective_of
from mmgrpo.config import ObjectiveConfig
from mmgrpo.config.loading import find_config, read_layers, shipped
from tests.maths.test_objectives_trl_live import draw_batch
from tests.maths.trl_oracle import our_outcome, totals_as_trl, trl_outcome

pytest.importorskip("trl")

FILES = {name: read_layers(find_config(name)) for name in shipped("methods")}
SAME = {name: values for name, values in FILES.items() if values["about"]["method"].get("trl")}


def test_every_loss_of_trl_has_a_file() -> None:
    options: list[dict[str, Any]] = [values["about"]["method"]["trl"] for values in SAME.values()]
    assert {option.get("loss_type", option.get("trainer")) for option in options} == {
        "grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo", "gmpo", "rloo",
    }  # fmt: skip
    assert {option.get("importance_sampling_level", "token") for option in options} == {"token", "sequence"}


@pytest.mark.parametrize("name", SAME)
def test_objective_is_that_of_trl(name: str) -> None:
    random, options = Random(7), SAME[name]["about"]["method"]["trl"]
    objective = objective_of(ObjectiveConfig.model_validate(SAME[name]["objective"]))
    moved = 0
    for _ in range(30):
        batch = draw_batch(random, {**options, "beta": 0.0})  # whatever beta, its KL is plain
        expected = trl_outcome(batch, options)
        assert our_outcome(batch, objective, totals_as_trl(batch, options)).distance(expected) < 1e-6
        moved += bool(expected.logprob_grad_BT.norm() > 1e-4)
    assert moved >= 10  # bounds as narrow as those of sequences leave few gradients
