"""Methods whose rows are drawn after each other: their numbers are in ``tests/configs/test_chain_methods.py``."""

from __future__ import annotations

ELSEWHERE = {"svs", "delethink", "motif", "clpo", "canoe", "multi-module-grpo", "grpo-care", "critique-rl"}
