"""Recipes without rewards of their own.

Of supervised stages the numbers of the losses are in tests of the maths; what a server of rewards says is its
own, and what a model of steps says is in tests/rewards."""

from __future__ import annotations

ELSEWHERE = {"soar", "mstar"}
