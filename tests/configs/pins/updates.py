"""Methods about the updates themselves, whose numbers are in ``tests/training/test_hooks.py``."""

from __future__ import annotations

ELSEWHERE = {"sfpo", "multiple-ticket-hypothesis", "rlvr-linearity"}
