"""Losses of methods that read the whole distribution of a token."""

from __future__ import annotations

A_TWO = 0.5 / (0.5**0.5 + 1e-6)
