"""Methods of what the network says inside, of which ``tests/maths/test_internals.py`` has more."""

from __future__ import annotations

ELSEWHERE = {"verl"}
"""In ``tests/training/test_internal_runs.py``: its usual numbers are of a run."""
