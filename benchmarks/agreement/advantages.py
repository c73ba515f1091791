"""Advantages of rows.

Axes: P groups, G rows of a group, B rows, T decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.agreement.authors import Settings, Source
from benchmarks.agreement.comparing import Case, G, P, Rows, advantage
from tests.configs.method_steps import Step

CORE = "verl/trainer/ppo/core_algos.py"
VERL = "zichongli5/verl"


def _right(rows: Rows) -> Step:
    return rows.step(rows.right_B)


def _verl(name: str, *further: str, repo: str = VERL, path: str = CORE) -> Source:
    return Source(repo=repo, path=path, names=(name, *further))


def _call(name: str, *, right: bool = False, **further: Any) -> Callable[[SimpleNamespace, Rows], Tensor]:
    """verl's estimators: rewards of decisions, the mask and the group of each row."""

    def called(theirs: SimpleNamespace, rows: Rows) -> Tensor:
        reward_BT = rows.spread(rows.right_B if right else rows.reward_B)
        return getattr(theirs, name)(reward_BT, rows.mask_BT.double(), rows.group_B.numpy(), **further)[0]

    return called


def _verdict(theirs: SimpleNamespace, rows: Rows) -> Tensor:
    # each decision sees all later rewards: with the reward in a row's last decision that is the row's
    last_BT = torch.zeros_like(rows.logprob_BT)
    last_BT.scatter_(1, rows.mask_BT.sum(1, keepdim=True) - 1, rows.right_B[:, None])
    mask_BT = rows.mask_BT.double()
    return theirs.compute_psr_nsr_outcome_advantage(last_BT.clone(), last_BT, mask_BT, 1.0, "weighted", 0.1)[0]


def _risk(theirs: SimpleNamespace, rows: Rows) -> Tensor:
    settings = Settings(
        quantile_down=0.2, quantile_up=0.9, credit_assign_mode="std", use_q_track_mode="batch",
        use_mixing_risk_measure=True, w_mix=1.5, natural_baseline_adv=True,
    )  # fmt: skip
    bundle_B = (rows.group_B // 5).numpy()
    return theirs.compute_grpo_bundle_rvar_outcome_advantage_quantile_tracking(
        rows.spread(rows.reward_B), rows.mask_BT.double(), rows.group_B.numpy(), bundle_B, config=settings
    )[0]


def _raft(theirs: SimpleNamespace, rows: Rows) -> Tensor:
    return theirs.compute_raft_outcome_advantage(rows.spread(rows.right_B), rows.mask_BT.double())[0]


def _tempo(theirs: SimpleNamespace, rows: Rows) -> Tensor:
    reward_BT = rows.spread(rows.right_B).float()
    token_BT, mask_BT = rows.token_BT, rows.mask_BT.float()
    return theirs.compute_tempo_outcome_advantage(reward_BT, token_BT, mask_BT, None, rows.group_B.numpy(), None)[0]


def _prefix_counts(theirs: SimpleNamespace, rows: Rows) -> Tensor:
    reward_BT = rows.spread(rows.reward_B)
    advantage_BT = _standard(reward_BT, rows.mask_BT.double(), rows.group_B, 1e-4)
    for group in range(P):
        member_B = rows.group_B == group
        advantage_BT[member_B] *= torch.stack(theirs.InfPRMTree(list(rows.token_BT[member_B])).loss_scales())
    return advantage_BT


def _standard(reward_BT: Tensor, mask_BT: Tensor, group_B: Tensor, eps: float) -> Tensor:
    """GRPO's advantage, for functions that only scale it."""
    score_B = reward_BT.sum(1)
    for group in group_B.unique():
        member_B = group_B == group
        of_group = score_B[member_B]
        score_B[member_B] = (of_group - of_group.mean()) / (of_group.std() + eps)
    return score_B[:, None] * mask_BT


def _lead(theirs: SimpleNamespace, rows: Rows) -> Tensor:
    advantage_BT = _standard(rows.spread(rows.right_B), rows.mask_BT.double(), rows.group_B, 1e-6)
    right_B1 = torch.stack([rows.right_B[rows.group_B == group].mean() for group in rows.group_B])[:, None]
    weight_B1 = theirs.logistic_reweight(right_B1), theirs.logistic_reweight(1 - right_B1)
    return advantage_BT * torch.where(advantage_BT > 0, *weight_B1)


def _perplexity(theirs: SimpleNamespace, rows: Rows) -> Tensor:
    fields = {"old_log_probs": rows.old_logprob_BT, "attention_mask": rows.mask_BT.double()}
    batch = SimpleNamespace(batch=fields, non_tensor_batch={"uid": rows.group_B.tolist()})
    advantage_BT = _standard(rows.spread(rows.reward_B), rows.mask_BT.double(), rows.group_B, 1e-6)
    score_BT = theirs.calculate_ppl(batch).batch["ppl_weight"]
    return advantage_BT * (1 - 0.01 * score_BT).clamp(0.8, 1.2)


def _noisy(theirs: SimpleNamespace, rows: Rows) -> Tensor:
    run = SimpleNamespace(args=SimpleNamespace(num_samples=G, critic_type="drgrpo", drgrpo_p=0.1))
    result = theirs.compute_monte_carlo_advantages(run, rows.spread(rows.right_B))
    return result[:, None].expand(rows.mask_BT.shape)


def _centered(theirs: SimpleNamespace, rows: Rows) -> Tensor:
    run = SimpleNamespace(args=SimpleNamespace(num_samples=G, critic_type="drgrpo"))
    result = theirs.compute_monte_carlo_advantages(run, rows.spread(rows.reward_B), None)
    return result[:, None].expand(rows.mask_BT.shape)


def _choose(n: int, k: int) -> int:
    """scipy's comb, which is 0 of a negative number."""
    return math.comb(n, k) if n >= 0 else 0


def _pass_at(theirs: SimpleNamespace, rows: Rows) -> Tensor:
    return theirs.compute_advantage(rows.spread(rows.right_B), rows.mask_BT.double(), rows.group_B.tolist(), 4)[0]


def _by_four(rows: Rows) -> Tensor:
    return torch.arange(len(rows.group_B)) // 4


def _budgeted(theirs: SimpleNamespace, rows: Rows) -> Tensor:
    budget_B1 = torch.tensor([512, 1024, 2048, 2560]).repeat(len(rows.group_B) // 4)[:, None]
    reward_BT, mask_BT = rows.spread(rows.reward_B), rows.mask_BT.double()
    return theirs.compute_grpo_outcome_advantage(reward_BT, mask_BT, _by_four(rows).numpy(), budget_B1)[0]


def _tracker(theirs: SimpleNamespace, rows: Rows, *, over_all: bool) -> Tensor:
    tracker = theirs.PerPromptStatTracker(over_all)
    result = torch.tensor(tracker.update(rows.group_B.tolist(), rows.reward_B.tolist()))
    return result.clamp(-5, 5)[:, None].expand(rows.mask_BT.shape)


def _tracked(method: str, repo: str, *, over_all: bool) -> Case:
    source = Source(repo=repo, path="flow_grpo/stat_tracking.py", names=("PerPromptStatTracker",))
    return advantage(method, source, lambda theirs, rows: _tracker(theirs, rows, over_all=over_all))


GRPO = "compute_grpo_outcome_advantage"
RIGHT_OR_WRONG = "rewards 0 or 1"
PREFIXES = {"name": "prefix_tree", "weight": 1.0, "normalize": True, "eps": 1e-6}
CASES: Sequence[Case] = (
    advantage(
        "dapo", _verl(GRPO), _call(GRPO), over={"advantage.zero_variance_groups": "keep"}, note="complete groups"
    ),
    advantage("gspo", _verl(GRPO), _call(GRPO)),
    advantage(
        "dr-grpo",
        _verl(
            "ZeroMathLearner.compute_monte_carlo_advantages",
            repo="sail-sg/understand-r1-zero",
            path="train_zero_math.py",
        ),
        _centered,
    ),
    advantage(
        "pass-k-training",
        Source(
            repo="RUCAIBox/Passk_Training",
            path="code/passk_adv.py",
            names=("compute_advantage", "calc_adv"),
            needs={"comb": _choose},
        ),
        _pass_at,
        step=_right,
        note=f"k 4, {RIGHT_OR_WRONG}",
    ),
    advantage(
        "bnpo",
        _verl("compute_bnpo_outcome_advantage", repo="changyi7231/BNPO", path="recipe/bnpo/src/bnpo_ray_trainer.py"),
        _call("compute_bnpo_outcome_advantage", right=True),
        step=_right,
        note=RIGHT_OR_WRONG,
    ),
    advantage(
        "rloo",
        _verl("compute_rloo_outcome_advantage"),
        _call("compute_rloo_outcome_advantage"),
        over={"advantage.kl.beta": 0.0, "advantage.kl.divergence": None},
        note="without the divergence in the reward",
    ),
    advantage(
        "ngrpo",
        _verl("compute_ngrpo_outcome_advantage", repo="nangongrui-ngr/NGRPO"),
        _call("compute_ngrpo_outcome_advantage", right=True),
        step=_right,
        note=RIGHT_OR_WRONG,
    ),
    advantage(
        "nsr",
        _verl("compute_psr_nsr_outcome_advantage", repo="nangongrui-ngr/NGRPO"),
        _verdict,
        step=_right,
        note=f"weighted by 0.1, {RIGHT_OR_WRONG}",
    ),
    advantage(
        "riskpo",
        _verl("compute_grpo_bundle_rvar_outcome_advantage_quantile_tracking", repo="RTkenny/RiskPO"),
        _risk,
        note="credit_assign_mode std, use_q_track_mode batch",
    ),
    advantage(
        "raft",
        _verl("compute_raft_outcome_advantage", repo="RLHFlow/Minimal-RL"),
        _raft,
        step=_right,
        note=RIGHT_OR_WRONG,
    ),
    advantage(
        "reinforce-rej",
        _verl("compute_reinforce_rej_outcome_advantage", repo="RLHFlow/Minimal-RL"),
        _call("compute_reinforce_rej_outcome_advantage"),
    ),
    advantage(
        "grpo-lead",
        _verl("logistic_reweight", repo="aeroplanepaper/GRPO-LEAD", path=f"verl/{CORE}"),
        _lead,
        step=_right,
        note=f"times the standardized reward, {RIGHT_OR_WRONG}",
    ),
    advantage(
        "tempo",
        _verl("compute_tempo_outcome_advantage", repo="fatebreaker/tempo"),
        _tempo,
        over={"advantage.scale": {"name": "group", "eps": 1e-6}, "advantage.estimators": [PREFIXES]},
        step=_right,
        note=f"eps 1e-6, float32, {RIGHT_OR_WRONG}",
    ),
    advantage(
        "lambda-grpo",
        Source(
            repo="coli-saar/grpo-prm",
            path="lambda_grpo/utils.py",
            names=("InfPRMTree", "InfPRMNode"),
        ),
        _prefix_counts,
        note="loss_scales times the standardized reward, float32",
    ),
    advantage(
        "ppl",
        _verl("calculate_ppl", repo="RUCAIBox/Slow_Thinking_with_LLMs", path=f"entropy2performance/verl/{CORE}"),
        _perplexity,
        note="its ppl_weight in a factor on the standardized reward, float32",
    ),
    advantage(
        "stable-grpo",
        _verl(
            "ZeroMathLearner.compute_monte_carlo_advantages",
            "group_weight",
            repo="shenpeijun0212/S-GRPO",
            path="train/train_S-GRPO.py",
        ),
        _noisy,
        step=_right,
        note=RIGHT_OR_WRONG,
    ),
    advantage(
        "hbpo",
        _verl(GRPO, repo="ZJU-REAL/HBPO"),
        _budgeted,
        step=lambda rows: replace(rows.step(rows.reward_B), groups=_by_four(rows).tolist()),
        note="groups of 4",
    ),
    _tracked("flow-grpo", "yifan123/flow_grpo", over_all=True),
    _tracked("grpo-guard", "yifan123/flow_grpo", over_all=False),
    _tracked("dgpo", "Luo-Yihong/DGPO", over_all=False),
)
