"""What samples and decisions are worth beside the rest of their group."""

from __future__ import annotations

LOW_BUT_TWO = [0.1] * 6 + [1.0, 2.0]
ALIKE, OTHER, ANOTHER = (list(range(start, start + 8)) for start in (1, 11, 21))
A_TREE_6 = 0.5 / 0.5773513  # rewards 1, 1, 0, 0; eps 1e-6


ELSEWHERE = {"ead"}
"""In ``tests/policies/test_language_sampling.py``: it changes how tokens are drawn."""
