"""REX-RAG, arXiv:2508.08149.

Failed rows are continued with an inserted thought in place of their answer, and the ratio is to the mixture of both
ways of sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, failed_branches, second_round
from mmgrpo.maths.strategies.branch_points import Places, Row
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def last_turn(*, room: int) -> Places:
    """Before the last turn of rows with several, if it has ``room`` or more decisions: a text then fits in its place.

    Units: decisions.
    """

    def find(row: Row) -> Sequence[int]:
        start, end = row.turns[-1] if len(row.turns) > 1 else (0, 0)
        return [start] if end - start >= max(room, 1) else []

    return Places(find=find)


def _check_explore_failed(texts: Sequence[str], probability: float, limit: float, room: int) -> None:
    if isinstance(texts, str) or not texts or not all(texts):
        raise ConfigError(f"explore_failed needs a list of texts that begin a new thought, got {texts!r}")
    if not 0 < probability <= 1 or not 0 < limit <= 1 or room < 0:
        raise ConfigError(
            "explore_failed needs probability and limit above 0 and at most 1, and room of 0 or more, got "
            f"{probability}, {limit} and {room}"
        )


@STRATEGIES.register
@second_round(places=lambda room: last_turn(room=room), check=_check_explore_failed)
def explore_failed(
    first: Round,
    setting: Setting,
    *,
    texts: Sequence[str],
    probability: float = 0.2,
    limit: float = 0.12,
    below: float = 1.0,
    room: int = 32,
) -> Sequence[Request]:
    """Failed rows are sampled on from their last turn, which begins with one of ``texts``, forced and never trained.

    A row whose reward is under ``below`` is continued with this probability; over all groups at most ``limit`` times as
    many rows are added as there are, chosen at random. A row of one turn, or with a last turn of less than ``room``
    decisions, is not continued: a text of fewer tokens fits into the length limit of the row.

    Units: probability and limit are shares; below in the reward's units; room in decisions.
    Raises: ConfigError for numbers that continue nothing, also for a limit of less than one row of a step.
    Source: REX-RAG, arXiv:2508.08149, and its code (MiliLab/REX-RAG, search_r1/llm_agent/generation.py,
        ``execute_predictions``, and ray_trainer.py, ``reorder_batch``). Deviations: the code keeps the added rows whose
        inserted text is likeliest; it also continues rows of one turn, and trains the inserted text.
    """
    most = int(limit * len(first.prompt_B))
    if most < 1:
        raise ConfigError(
            f"explore_failed adds at most limit = {limit:g} of {len(first.prompt_B)} rows, which is none: raise limit, "
            "rollout.prompts_per_step or rollout.group_size"
        )
    candidates = []
    for prompt, branch in failed_branches(first, below):
        random = Random(derive_seed(setting.seed, prompt, branch.member, 1))
        if random.random() < probability:
            candidates.append((random.random(), prompt, replace(branch, then=random.choice(texts))))
    chosen = sorted(candidates, key=lambda row: row[0])[:most]
    return tuple(
        Request(prompt=prompt, members=(setting.group_size + branch.member,), continues=branch)
        for _, prompt, branch in sorted(chosen, key=lambda row: (row[1], row[2].member))
    )


@ESTIMATORS.register
@estimator()
def mixture_correction(feedback: Feedback, advantage_BT: Tensor, *, right: float = 1.0) -> Tensor:
    """Advantages over the probability of a decision under the mixture, relative to that of the policy.

    A_t <- A_t pi_old / mu. With a the share of rows that continue others and z that of the other rows with a reward
    under ``right``: mu / pi_old = 1 - a in a row that continues none; in one that continues another after j decisions,
    (1 - a) + a z^(-1 / j) in those, and 1 after them. Under a clipped surrogate this is the ratio to the mixture,
    bounded by the ratio to the policy. Shares are of the job's rows that a reward applied to, and
    others keep their advantages; z is at least one row.

    Units: right in the reward's units.
    Source: REX-RAG, arXiv:2508.08149, and its code (MiliLab/REX-RAG, verl/workers/actor/dp_actor.py, ``mu_prob``).
    """
    shared_BT = torch.zeros_like(feedback.mask_BT)
    if feedback.sampled_by_BT is not None:
        shared_BT = feedback.sampled_by_BT != torch.arange(len(shared_BT))[:, None]
    num_shared_B1 = shared_BT.sum(1, keepdim=True)
    is_added_B = num_shared_B1[:, 0] > 0
    failed_B = feedback.valid_B & ~is_added_B & (feedback.reward_B < right)
    counted = [feedback.valid_B & is_added_B, feedback.valid_B & ~is_added_B, failed_B]
    added, others, failed = feedback.summed(torch.stack([rows_B.sum().double() for rows_B in counted])).tolist()
    share = added / max(added + others, 1.0)
    error_rate = max(failed, 1.0) / max(others, 1.0)
    probe_B1 = (1 - share) + share * error_rate ** (-1 / num_shared_B1.clamp(min=1).double())
    mixture_BT = torch.where(shared_BT, probe_B1, torch.where(is_added_B[:, None], 1.0, 1 - share).double())
    return torch.where(feedback.valid_B[:, None], advantage_BT / mixture_BT, advantage_BT).to(advantage_BT)
