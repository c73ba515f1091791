"""Recipes without shipped rewards.

Tests of the maths check the losses of supervised stages, tests/rewards the models that score steps; the scores of a
reward server are its own."""

from __future__ import annotations

ELSEWHERE = {"soar", "mstar"}
