"""DEPO (online): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import config_of


def test_bound_of_negative_advantages_is_that_of_the_authors_fork_of_verl() -> None:
    surrogate = config_of("depo").objective.surrogate
    assert surrogate is not None
    assert (surrogate.name, surrogate.settings["bound"]) == ("dual_clipped", 3.0)  # clip_ratio_c in their scripts
