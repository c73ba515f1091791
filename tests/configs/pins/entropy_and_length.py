"""What decisions are worth by their entropy, and samples by their length."""

from __future__ import annotations

from math import exp

from tests.configs.pins.rows import A_TWO

W = 2 / (1 + exp(-2 * A_TWO + 1))
"""Twice the larger weight of two decisions, of advantages A_TWO and -A_TWO and entropies 0.5 and 1.5."""


# of 0.1, 0.5, 0.3, 0.4, 0.2 the quantile 0.8 is 0.42, of the second row 0.58: one decision of five counts in each

ELSEWHERE = {"coba-rl"}
