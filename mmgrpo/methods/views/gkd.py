"""GKD (generalized knowledge distillation), arXiv:2306.13649.

The loss compares the distributions of all tokens of student and teacher. A step trains on samples of the student or on
the answers of its rows, at random.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.strategies import STRATEGIES, Answer, Request, Round, Setting, fixed, strategy
from mmgrpo.maths.terms import TERMS, Loss, term
from mmgrpo.maths.terms.view_terms import mean_of, view_mask
from mmgrpo.values import generalized_jsd as jsd_value


def _check_generalized_jsd(beta: float) -> None:
    if not 0 <= beta <= 1:
        raise ConfigError(f"beta of generalized_jsd is 0 to 1, got {beta}")


@TERMS.register
@term(
    name=lambda view: f"generalized_jsd@{view}",
    values=lambda view, beta: (jsd_value(view, beta),),
    active=view_mask,
    unscored=True,
    check=_check_generalized_jsd,
)
def generalized_jsd(decisions: Decisions, *, view: str, beta: float = 0.5) -> Loss:
    """The mean divergence of the distributions of all tokens from those of a teacher, with its full gradient.

    L = sum v D, D = beta KL(q || m) + (1 - beta) KL(p || m), m = beta q + (1 - beta) p, q of the teacher, p of the
    policy. At beta 0 D is KL(q || p), at beta 1 KL(p || q).
    Both distributions have the policy's temperature. Logits are computed for a part of the tokens at a time.

    Units: nats; beta 0 to 1.
    Raises: ConfigError for another beta.
    Source: GKD, arXiv:2306.13649, eq. 1, and TRL's ``GKDTrainer``. Deviation: where the vocabulary of one model is
        padded further, over the common tokens.
    """
    return mean_of(f"generalized_jsd@{view}", decisions, decisions[jsd_value(view, beta)], view=view)


def _check_student_or_answer(fraction: float) -> None:
    if not 0 <= fraction <= 1:
        raise ConfigError(f"fraction of student_or_answer is the share of steps that sample, 0 to 1, got {fraction}")


@STRATEGIES.register
@strategy(off_policy=lambda fraction: fraction < 1, check=_check_student_or_answer)
def student_or_answer(
    rounds: Sequence[Round], setting: Setting, *, fraction: float = 0.5, column: str = "solution"
) -> Sequence[Request]:
    """A step samples its groups with the probability ``fraction``; else each group is the answer of its row.

    Units: fraction is a share of steps, 0 to 1.   Raises: ConfigError for another share.
    Source: GKD, arXiv:2306.13649, alg. 1, the student data fraction lambda, and TRL's ``GKDTrainer``, lmbda, which
        chooses for a batch at a time.
    """
    groups = fixed().ask(rounds, setting)
    if random.Random(setting.seed).random() < fraction:
        return groups
    answer = (Answer(column),)
    return tuple(Request(prompt=group.prompt, members=(0,), off_policy_rows=answer) for group in groups)
