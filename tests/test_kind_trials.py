"""Signals over kinds of runs, with signals while they load; see docs/design/faults.md."""

from __future__ import annotations

import pytest

from tests.kind_trials import main


@pytest.mark.nightly
def test_interrupted_runs_of_every_kind_resume_to_the_same_end() -> None:
    assert main(["--trials", "16", "--seed", "7"]) == 0
