"""Losses of a few rows."""

from __future__ import annotations

from math import exp, log

from mmgrpo.methods.sampling.diffusion_nft import negative_error, positive_error
from mmgrpo.values import Value, from_reference, of_view, seen_in
from tests.configs.method_steps import Step
from tests.configs.pins.rows import A_TWO, A_TWO_6, DOWN, ONE_OF_FOUR, ONE_OF_TWO, SCORED, UP

REFERENCE_LOGPROB = Value("logprob", "reference")

LOSSES: dict[str, tuple[Step, float]] = {
    # of the two advantages nothing is left; masked minus plain -0.7: -0.02 (e^-0.7 - 1 + 0.7) = -0.02 * 0.196585
    "papo": (
        Step(
            reward=ONE_OF_TWO,
            lengths=[1, 1],
            values={of_view("masked"): [[-1.7], [-1.7]], from_reference("k3"): [[0.0], [0.0]]},
        ),
        -0.0039317,
    ),
    # the peer's view -0.5 of a token at -1: (-1 + 0.5) (-1), over the one member that has a right peer
    "sdpo": (
        Step(
            reward=ONE_OF_TWO,
            lengths=[1, 1],
            values={of_view("peer"): [[0.0], [-0.5]], seen_in("peer"): [[0.0], [1.0]]},
        ),
        0.5,
    ),
    # mean of -A logprob, A = 0.75, -0.25: (0.75 - 0.5 - 0.75 - 1) / 4
    "gpg": (Step(reward=ONE_OF_FOUR, old_logprob=((-1.0,), (-2.0,), (-3.0,), (-4.0,))), -0.375),
    # the mean is over the first and one other: 1.499997 and -0.499999 at ratio 1
    "cppo": (Step(reward=ONE_OF_FOUR, values={from_reference("k3"): [[0.5, 0.5]] * 4}), -0.499999 + 0.04 * 0.5),
    # d - mean d = 0.4, -0.3, 0, -0.1; r - mean r = 0.75, -0.25: (0.71^2 + 0.22^2 + 0.25^2 + 0.24^2) / 6
    "gvpo": (Step(reward=ONE_OF_FOUR, log_ratio=SCORED), 0.1121),
    # r = 0.5 + A / 10 of the first; both errors of the other are 0.4; kl 1e-4 * 0.5
    "diffusion-nft": (
        Step(
            reward=ONE_OF_TWO,
            lengths=(1, 1),
            values={
                positive_error(1.0): [[0.2], [0.4]],
                negative_error(1.0): [[0.6], [0.4]],
                from_reference("velocity_mse"): [[0.5]] * 2,
            },
        ),
        5 * ((0.5 + A_TWO / 10) * 0.2 + (0.5 - A_TWO / 10) * 0.6 + 0.4) / 2 + 5e-5,
    ),
    # rewards less their mean 0.5, -0.5; ratios e^0.3, held at 1.5 not at all, and 1: -0.5 (e^0.3 + 1 - 1 - 1) / 4; kl
    "diffu-grpo": (
        Step(
            reward=ONE_OF_TWO,
            log_ratio=((0.3, 0.0), (0.0, 0.0)),
            values={from_reference("k3"): [[0.5, 0.5]] * 2},
        ),
        -0.5 * (exp(0.3) - 1) / 4 + 0.04 * 0.5,
    ),
    # ratio e^0.3, held at 1.2: -A (1.2 + 1 - 1 - 1) / 4, A = 0.5 / 0.7071168; kl 0.01 * 0.5
    "maskgrpo": (
        Step(
            reward=ONE_OF_TWO,
            log_ratio=((0.3, 0.0), (0.0, 0.0)),
            values={from_reference("k3"): [[0.5, 0.5]] * 2},
        ),
        -0.5 / (0.5**0.5 + 1e-5) * 0.2 / 4 + 0.01 * 0.5,
    ),
    # the levels of a sample add up: ratios e^(0.05 + 0.06) and e^-0.3, held at 0.8: -0.5 (e^0.11 - 0.8) / 2
    "gdpo--improving-reasoning": (
        Step(reward=ONE_OF_TWO, log_ratio=((0.05, 0.06), (-0.1, -0.2))),
        -0.5 * (exp(0.11) - 0.8) / 2,
    ),
    # ratios 2.5, held at 2, and 1: (-2 A + A) / 2; kl 1e-3 * 0.5
    "awm": (
        Step(
            reward=ONE_OF_TWO,
            log_ratio=((log(2.5),), (0.0,)),
            values={from_reference("velocity_mse"): [[0.5]] * 2},
        ),
        -A_TWO / 2 + 5e-4,
    ),
    # as awm with A = 0.5 and -0.5: ratios 2.5, held at 2, and 1
    "promptecho": (
        Step(
            reward=ONE_OF_TWO,
            log_ratio=((log(2.5),), (0.0,)),
            values={from_reference("velocity_mse"): [[0.5]] * 2},
        ),
        -0.25 + 5e-4,
    ),
    # of four decisions the right one at -1: its log-probability, and 0.001 * 0.5
    "raft": (
        Step(reward=ONE_OF_FOUR, lengths=[1] * 4, values={from_reference("k3"): [[0.5]] * 4}),
        0.25 + 5e-4,
    ),
    # the ratio of the right one is held at 1.2, the wrong one is nothing
    "raft-plus-plus": (
        Step(reward=ONE_OF_TWO, log_ratio=((UP,), (UP,)), values={from_reference("k3"): [[0.5]] * 2}),
        -0.6 + 5e-4,
    ),
    # ratio 4 of the bad one, with a ceiling of 3: A (3 - 1) / 2, A = 0.5 / 0.50001
    "rift": (Step(reward=ONE_OF_TWO, log_ratio=((0.0,), (log(4.0),))), 0.5 / 0.50001),
    # A = 0.5 / 0.5001; errors 0.2 and 0.4, 0.001 and 0 below the reference's: w = sigmoid(-100 * 0.001 A / 2), that is
    # 0.487505; w A (0.2 - 0.4) / 2; kl 0.02 * 0.5
    "dgpo": (
        Step(
            reward=ONE_OF_TWO,
            old_logprob=((-0.2,), (-0.4,)),
            values={of_view("reference"): [[-0.201], [-0.4]], from_reference("velocity_mse"): [[0.5]] * 2},
        ),
        -0.487505 * 0.5 / 0.5001 * 0.1 + 0.01,
    ),
    # psi 0.533333, -0.4, 0, -0.133333, losses 0.461617, 0.513015, 0.693147, 0.628702 at weights 2 and 2 / 3
    "pacs": (Step(reward=ONE_OF_FOUR, log_ratio=SCORED), (2 * 0.461617 + (0.513015 + 0.693147 + 0.628702) / 1.5) / 4),
    # log(1 + e^-0.2 + e^0) + log(1 + e^-0.4 + e^0.6)
    "real": (Step(reward=(1, 0, 0, 1), log_ratio=((0.1, 0.1), (-0.2, -0.2), (0.3, 0.3), (0.0, 0.0))), 2.286887),
    # -(1.1 - log mean(e^0.9, e^1, e^1.2)) = -0.058781; KL 0.00693213, over 1e-4 by 0.00683213, times 1000 KL
    "disco": (
        Step(reward=ONE_OF_FOUR, log_ratio=tuple((log(ratio),) for ratio in (1.1, 0.9, 1.0, 1.2))),
        -0.058781 + 6.83213 * 0.00693213,
    ),
    # the best has 0.5, the first of the worst -0.2: log(1 + e^-0.07)
    "online-dpo": (
        Step(reward=ONE_OF_FOUR, log_ratio=SCORED, values={REFERENCE_LOGPROB: [[-1.0, -1.0]] * 4}),
        0.658760,
    ),
    # entropies 0 .. 4 of quantile 3.2, ratio 1.4: A (5 * 1.4 - 4 * 1.2 - 1.4) / 10, and four fifths of 0.001 * 0.5
    "archer": (
        Step(
            reward=ONE_OF_TWO,
            log_ratio=[[log(1.4)] * 5] * 2,
            entropy=[[0.0, 1.0, 2.0, 3.0, 4.0]] * 2,
            values={from_reference("k3"): [[0.5] * 5] * 2},
        ),
        0.08 * A_TWO_6 + 0.0004,
    ),
    # q = 0.9: the ratio is held within 0.768742 and 1.187184
    "dcpo-clip": (
        Step(reward=ONE_OF_TWO, log_ratio=((UP,), (DOWN,)), old_logprob=((log(0.9),), (log(0.9),))),
        A_TWO * (0.768742 - 1.187184) / 2,
    ),
    # c = A (logprob + 2) is 1.5 in the first row alone, which is left out: six decisions of 0.499999 over eight
    "clip-cov": (Step(reward=ONE_OF_FOUR, old_logprob=((-1, -1), (-3, -3), (-1, -1), (-3, -3))), 0.749998 * 0.5),
    # the first row's c is the highest: its |0.1| joins -1.499997 e^0.1, over four rows
    "kl-cov": (
        Step(
            reward=ONE_OF_FOUR,
            old_logprob=((-1, -1), (-3, -3), (-1, -1), (-3, -3)),
            log_ratio=((0.1, 0.1), (0, 0), (0, 0), (0, 0)),
        ),
        (-1.499997 * 1.1051709 + 3 * 0.499999 + 0.1) / 4,
    ),
    "klear-gppo": (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (DOWN,))), A_TWO_6 * (0.8 - 1.28) / 2),
    # r = 1.5: -(1.5 - 0.25 / 0.4) A
    "simple-policy-optimization": (Step(reward=ONE_OF_TWO, log_ratio=((log(1.5),), (0.0,))), A_TWO * (1 - 0.875) / 2),
    # p = 0.25, times 0.75: right -log 1.1, wrong -log(0.8 / 0.75), the sum over two decisions over 1000, four samples
    "nft": (
        Step(reward=ONE_OF_FOUR, log_ratio=((log(1.1),) * 2, *((log(0.8),) * 2,) * 3)),
        0.75 * 2 * (-log(1.1) - 3 * log(0.8 / 0.75)) / 4000,
    ),
    "prorl": (
        Step(reward=ONE_OF_TWO, log_ratio=((UP,), (0.0,)), values={from_reference("k3"): ((0.5,), (0.5,))}),
        A_TWO * (1 - 1.4) / 2 + 0.00005,
    ),
    # A = 2 / 3, -1 / 3, -1 / 3; the answer's p = 0.9: 0.9 / 1 of its A; -1 / 3 of ratios 1.1 and 1; entropy 0.001 * 0.3
    "luffy": (
        Step(
            reward=(0, 0, 1),
            old_logprob=((-1.0,), (-1.0,), (log(0.9),)),
            log_ratio=((log(1.1),), (0.0,), (0.0,)),
            entropy=((0.3,),) * 3,
            origins=(0, 0, 2),
        ),
        ((1.1 + 1) / 3 - 0.9 * 2 / 3 - 0.001 * 0.9) / (3 * 8192),
    ),
    # the answer's p = p_old = 0.2: w = 0.6, 2 p / (p_old + w) = 0.5, (1 - p)^0.5 = 0.894427
    "rl-plus": (
        Step(
            reward=(0, 0, 1),
            old_logprob=((-1.0,), (-1.0,), (log(0.2),)),
            log_ratio=((log(1.1),), (0.0,), (0.0,)),
            entropy=((0.3,),) * 3,
            origins=(0, 0, 2),
        ),
        ((1.1 + 1) / 3 - 0.5 * 0.894427 * 2 / 3 - 0.001 * 0.9) / (3 * 8192),
    ),
    "dph-rl": (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (log(4.0),))), A_TWO_6 * (3 - 1.28) / 2),
    "mm-helix": (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (0.0,))), A_TWO * (1 - 1.2) / 2),
    "scaf-grpo": (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (log(4.0),))), A_TWO_6 * (3 - 1.2) / 2),
    "greso": (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (0.0,))), A_TWO * (1 - 1.28) / 2),
    "competence-curriculum": (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (0.0,))), A_TWO * (1 - 1.2) / 2),
}
