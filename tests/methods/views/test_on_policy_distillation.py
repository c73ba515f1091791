"""On-policy distillation: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import TEACHER
from tests.configs.method_steps import assert_credit

# old -1.2, base -1.5, teacher -0.9: teacher - old, and -(old - base) + 1.25 (teacher - base); rewards have no effect
CREDIT = (TEACHER, [[0.3], [0.3]])


def test_advantages_of_the_method() -> None:
    assert_credit("on-policy-distillation", *CREDIT)
