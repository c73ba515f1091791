"""What a person reads in the console."""

from __future__ import annotations

import pytest

from mmgrpo.loading import validated
from mmgrpo.progress import Progress


def test_an_evaluation_is_a_line_of_means_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    line = {
        "step": 10,
        "eval/right/mean": 0.9375,
        "eval/right/std": 0.2,
        "eval/judge/mean": 21.5,
        "eval/judge/std": 1.0,
        "eval/judge/failed_frac": 0.25,
        "time/evaluation_s": 3.0,
    }
    Progress(validated({}), quiet=False).judged(line)
    assert capsys.readouterr().out == "step   10  right 0.938   judge 21.500   judge failed 25%\n"
    Progress(validated({}), quiet=True).judged(line)
    assert capsys.readouterr().out == ""
