"""Rows that several methods are tested on."""

from __future__ import annotations

from math import log

from mmgrpo.values import of_view
from tests.configs.method_steps import Step

ONE_OF_FOUR, ONE_OF_TWO = (1.0, 0.0, 0.0, 0.0), (1.0, 0.0)

# The sample deviation of 1, 0, 0, 0 is 0.5, that of 1, 0 is 0.7071068; eps is 1e-4 unless the file says 1e-6.
A_FOUR, A_TWO, A_TWO_6 = 0.75 / 0.5001, 0.5 / 0.7072068, 0.5 / 0.7071078

# Members begin [a b], [a b], [a c], [d e]; rewards 1, 1, 0, 0 of sample deviation 0.5773503.
TREE = Step(reward=(1.0, 1.0, 0.0, 0.0), tokens=((1, 2), (1, 2), (1, 3), (4, 5)))
A_TREE = 0.5 / 0.5774503

TEACHER = Step(
    reward=ONE_OF_TWO,
    old_logprob=[[-1.2], [-1.2]],
    values={of_view("teacher"): [[-0.9], [-0.9]], of_view("reference"): [[-1.5], [-1.5]]},
)

A_THREE = 1 / 3 / 0.5773513

# 1 and 0 were sampled, a refinement of 1 has the probability 0.1, so p / (p + 0.1) is 1/2: A (-1 + 2 - 1/2) = A / 2
REFINED = Step(reward=(1, 0, 1), sources=(0, 0, 2), old_logprob=[[-1.0], [-1.0], [log(0.1)]], entropy=[[0.0]] * 3)

UP, DOWN = log(2.0), log(0.5)
SCORED = ((0.25, 0.25), (-0.1, -0.1), (0.05, 0.05), (0.0, 0.0))  # sums 0.5, -0.2, 0.1, 0
