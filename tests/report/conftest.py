"""The run that the tests of the report read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.folder import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that went well."""
    run = tmp_path / "digits-2"
    write_run(run)
    return run
