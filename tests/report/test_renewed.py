"""A run writes its report at every evaluation and at its end, however it was started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mmgrpo.types import Sample
from tests.report.page import Page
from tests.test_resuming import started
from tests.test_trainer import brightness

EVALUATION = {"prompts": {"source": "python:mmgrpo.examples.digits:digit_prompts", "limit": 1}, "every": 1}


def note_and_status(run: Path) -> tuple[str, str]:
    """The status of the run on its page, and how far it came."""
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    return page.texts("span", "status")[0], facts["Trained"]


@pytest.mark.nightly
def test_the_report_is_renewed_at_every_evaluation_and_at_the_end(tmp_path: Path) -> None:
    run, pages = tmp_path / "run", []

    def watching(samples: Sequence[Sample]) -> list[float]:
        if (run / "report.html").exists():
            pages.append(note_and_status(run))
        if len(set(pages)) == 3:
            raise RuntimeError("enough")
        return brightness(samples)

    trainer = started(tmp_path, watching, steps=4, evaluation=EVALUATION)
    with pytest.raises(Exception, match="enough"):
        trainer.train()
    steps = ["not recorded", "1 step, 2 updates", "2 steps, 4 updates"]
    assert list(dict.fromkeys(pages)) == [("running", step) for step in steps]
    assert note_and_status(run) == ("failed", "2 steps, 4 updates")


@pytest.mark.nightly
def test_a_report_that_cannot_be_written_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def obstructing(samples: Sequence[Sample]) -> list[float]:
        (tmp_path / "run" / "report.html").mkdir(exist_ok=True)
        return brightness(samples)

    trainer = started(tmp_path, obstructing, steps=1)
    trainer.train()
    assert trainer.status == "finished"
    assert "no report was written" in caplog.text
