"""Losses that compare the rows of a group, and losses of rows that others wrote.

Axes: P groups, G rows of a group, B rows, T decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.agreement.authors import Settings, Source, masked_mean
from benchmarks.agreement.comparing import Case, G, LossInputs, P, Rows, T, loss
from mmgrpo.values import of_view
from tests.configs.method_steps import Step

CORE = "verl/trainer/ppo/core_algos.py"
GRADIENT = ("gradient",)
LENGTH = {"objective.aggregate": {"name": "constant_length", "length": T}, "objective.entropy_bonus": 0.0}
RIGHT_OR_WRONG = "rewards 0 or 1"

Theirs = Callable[[SimpleNamespace, LossInputs], Tensor]


def _right(rows: Rows) -> Step:
    return rows.step(rows.right_B)


def _first_row_off_policy(rows: Rows) -> Step:
    """The first row of each group is off-policy."""
    return rows.step(rows.right_B, sources=_is_off_policy(rows).int().tolist())


def _is_off_policy(rows: Rows) -> Tensor:
    return torch.arange(len(rows.group_B)) % G == 0


def _term(name: str, **numbers: Any) -> dict[str, Any]:
    return {"about.method": None, "objective.terms": [{"name": name, **numbers}]}


def _real(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    rows = inputs.rows
    return theirs.compute_policy_loss_real(
        inputs.old_BT, inputs.logprob_BT, None, inputs.mask_BT, rows.group_B, rows.right_B, 1e-4, 0.5, "kl"
    )[0]


def _disco(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    rows = inputs.rows
    return theirs.compute_policy_loss_disco_Lratio(
        inputs.old_BT, inputs.logprob_BT, None, inputs.mask_BT, rows.group_B, rows.right_B, 1e9, 0.0, 1.0, "kl"
    )[0]


def _drpo(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    rows = inputs.rows
    return theirs.compute_policy_loss_drpo(
        inputs.old_BT, inputs.logprob_BT, inputs.mask_BT, rows.group_B, rows.right_B, 1e9, 0.0, 10.0, 0.1, "kl"
    )[0]


def _balanced(kind: str, *, classes: np.ndarray, y: Sequence[float]) -> list[float]:
    """scikit-learn's ``compute_class_weight`` of balanced classes."""
    count = Counter(y)
    return [len(y) / (len(classes) * count[label]) for label in classes.tolist()]


def _pacs(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    rows = inputs.rows
    settings = Settings(beta=1.0, reward_method="1", adv_estimator="rloo", use_weight=True, weight_mode="question")
    old_BT, logprob_BT = (value_BT * inputs.mask_BT for value_BT in (inputs.old_BT, inputs.logprob_BT))
    return theirs.compute_pacs_loss(
        rows.group_B[:, None], old_BT, logprob_BT, rows.spread(rows.right_B), inputs.mask_BT, G, settings
    )


def _balance(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    score_PG = (inputs.logprob_BT * inputs.mask_BT).sum(1).view(P, G)
    wanted_PG = _positive(inputs.rows).view(P, G).log()
    result = [
        theirs.tb_loss(score_G, wanted_G, None, logpartition=True)
        for score_G, wanted_G in zip(score_PG, wanted_PG, strict=True)
    ]
    return torch.stack(result).mean()


def _positive(rows: Rows) -> Tensor:
    return rows.reward_B.exp()


def _pairs(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    # theirs is called group by group, since ours is a mean over a group's pairs and then over groups
    rows, result = inputs.rows, []
    for group in range(P):
        row_G = rows.group_B == group
        level_G = 2 - rows.right_B[row_G].long()
        if len(level_G.unique()) > 1:
            of_group = (inputs.logprob_BT[row_G], _reference(rows)[row_G], None, inputs.mask_BT[row_G], 0.1, level_G)
            result.append(theirs.compute_pairwise_policy_loss(*of_group, 2.5, id_tensor=torch.zeros(G))[0])
    return torch.stack(result).sum() / P


def _reference(rows: Rows) -> Tensor:
    return rows.old_logprob_BT.flip(0)


def _referred(rows: Rows) -> Step:
    return rows.step(rows.right_B, values={of_view("reference"): _reference(rows).tolist()})


def _with_teacher(rows: Rows) -> Step:
    teacher = {of_view("peer"): _reference(rows).tolist()}
    return rows.step(rows.reward_B, values=teacher)


def _self_distillation(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    settings = Settings(full_logit_distillation=False, alpha=1.0, is_clip=2.0)
    return theirs.compute_self_distillation_loss(
        inputs.logprob_BT, _reference(inputs.rows), inputs.mask_BT, settings, inputs.old_BT
    )[0]


def _mixed(**settings: Any) -> Theirs:
    """The loss of rows that the policy drew and of rows that it did not: summed over tokens, over the length."""

    def called(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
        prefix_BT = _is_off_policy(inputs.rows)[:, None].expand(inputs.mask_BT.shape)
        result = theirs.compute_token_on_off_policy_loss(
            inputs.old_BT, inputs.logprob_BT, inputs.advantage_BT, inputs.mask_BT, 0.2, 1.2, prefix_BT,
            loss_remove_token_mean=True, loss_remove_clip=True, **settings,
        )  # fmt: skip
        return result["pg_loss"] / len(prefix_BT)

    return called


def _several_teachers(theirs: SimpleNamespace, inputs: LossInputs) -> Tensor:
    settings = Settings(
        clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=10.0, off_policy_normalize=False,
        off_policy_max_clip=-1, off_policy_min_clip=-1, all_max_clip=-1, off_policy_reshape="p_div_p_0.1",
        loss_remove_token_mean=True, loss_remove_clip=False,
    )  # fmt: skip
    prefix_BT = _is_off_policy(inputs.rows)[:, None].expand(inputs.mask_BT.shape)
    result = theirs.compute_token_on_off_policy_loss(
        inputs.old_BT, inputs.logprob_BT, inputs.advantage_BT, inputs.mask_BT, prefix_BT, config=settings
    )
    return result["pg_loss"] / len(prefix_BT)


def _diagnosed(**settings: Any) -> Tensor:
    """In place of AMPO's ``agg_loss``, which serves its diagnostics alone where the mean over tokens is off."""
    return masked_mean(settings["loss_mat"], settings["loss_mask"])


def _on_and_off(repo: str, path: str) -> Source:
    return Source(repo=repo, path=path, names=("compute_token_on_off_policy_loss",), needs={"agg_loss": _diagnosed})


SHAPED = {"off_policy_reshape": "p_div_p_0.1", "off_cliprange": None}
OVER_ROWS = "over the number of rows"

ON_AND_OFF = (
    ("luffy", _on_and_off("ElliottYan/LUFFY", "luffy/verl/verl/mix_src/mix_core_alg.py"), _mixed(**SHAPED)),
    (
        "exgrpo",
        Source(
            repo="ElliottYan/LUFFY",
            path="ExGRPO/exgrpo/verl/verl/mix_src/mix_core_alg.py",
            names=("compute_token_on_off_policy_loss", "compute_per_batch_variance"),
        ),
        _mixed(**SHAPED),
    ),
    (
        "critique-grpo",
        _on_and_off("zhangxy-2019/critique-GRPO", "verl/verl/critique_grpo/critique_core_algos.py"),
        _mixed(**SHAPED),
    ),
    (
        "rl-plus",
        _on_and_off("YihongDong/RL-PLUS", "rl_plus/verl/verl/recipe/rlplus_core_alg.py"),
        _mixed(off_policy_strategy="RL-PLUS"),
    ),
    (
        "ampo",
        _on_and_off("SII-Enigma/AMPO", "ampo/verl/verl/adaptive_mix_src/mix_core_alg.py"),
        _several_teachers,
    ),
)
"""Methods whose code has a loss of on-policy and of off-policy rows."""

CASES: Sequence[Case] = (
    loss(
        "real",
        Source(repo="Red-RL/REAL", path=f"verl/{CORE}", names=("compute_policy_loss_real",)),
        _real,
        step=_right,
        note=RIGHT_OR_WRONG,
    ),
    loss(
        "disco",
        Source(repo="Optimization-AI/DisCO", path=f"verl/{CORE}", names=("compute_policy_loss_disco_Lratio",)),
        _disco,
        over=_term("disco", tau=1.0, score_by="mean_ratio", against="old"),
        step=_right,
        only=GRADIENT,
        note=f"without its constraint, {RIGHT_OR_WRONG}",
    ),
    loss(
        "drpo",
        Source(repo="Optimization-AI/DRPO", path=f"verl/{CORE}", names=("compute_policy_loss_drpo",)),
        _drpo,
        over=_term("drpo", tau=10.0, spread=0.1, longest=T, score_by="mean_logprob"),
        step=_right,
        only=GRADIENT,
        note=f"without its constraint, {RIGHT_OR_WRONG}",
    ),
    loss(
        "pacs",
        Source(
            repo="ritzz-ai/PACS",
            path="src/pacs/pacs_core_algos.py",
            names=("compute_pacs_loss", "compute_reward", "compute_rloo_outcome_advantage", "compute_weight"),
            needs={"BCEWithLogitsLoss": torch.nn.BCEWithLogitsLoss, "compute_class_weight": _balanced},
        ),
        _pacs,
        step=_right,
        note=f"weighted by question, {RIGHT_OR_WRONG}",
    ),
    loss(
        "flow-of-reasoning",
        Source(repo="Yu-Fangxu/FoR", path="BlocksWorld/util.py", names=("tb_loss",)),
        _balance,
        step=lambda rows: rows.step(_positive(rows)),
        note="a mean over groups",
    ),
    loss(
        "trpa",
        Source(
            repo="XueruiSu/Trust-Region-Preference-Approximation", path=CORE, names=("compute_pairwise_policy_loss",)
        ),
        _pairs,
        over=_term("preference", beta=0.1, pairs="all", top=1.0, sharper=2.5, score_by="mean_log_ratio"),
        step=_referred,
        note=f"a mean over groups, without the divergence, {RIGHT_OR_WRONG}",
    ),
    loss(
        "sdpo",
        Source(repo="lasgroup/SDPO", path=CORE, names=("compute_self_distillation_loss", "agg_loss")),
        _self_distillation,
        over={"advantage.filters": []},
        step=_with_teacher,
        note="full_logit_distillation False, all rows with a teacher",
    ),
    *(
        loss(method, source, theirs, over=LENGTH, step=_first_row_off_policy, note=OVER_ROWS)
        for method, source, theirs in ON_AND_OFF
    ),
)
