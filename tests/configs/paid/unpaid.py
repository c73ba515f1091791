"""Recipes of supervised stages, which have no rewards: the numbers of their losses are in tests of the maths."""

from __future__ import annotations

ELSEWHERE = {"soar"}
