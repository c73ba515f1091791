"""G-OPD (beyond the teacher): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import TEACHER
from tests.configs.method_steps import assert_credit

CREDIT = (TEACHER, [[0.45], [0.45]])


def test_advantages_of_the_method() -> None:
    assert_credit("g-opd", *CREDIT)
