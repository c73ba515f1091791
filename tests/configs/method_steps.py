"""The advantages, the trained rows and the loss of a few rows under a shipped method.

Axes: B rows, T decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config
from mmgrpo.maths.aggregates import count
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.feedback import Scoped, Turns
from mmgrpo.maths.modulations import detached
from mmgrpo.training.compute_advantages import group_advantages, split_off_policy_groups
from mmgrpo.types import Scores
from mmgrpo.values import ENTROPY, Value
from tests.maths.feedback_rows import feedback_of

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Rows of a rollout, in numbers small enough to work out by hand.

    Attributes:
        reward: of each row.
        groups: of each row; None: all are of one.
        log_ratio: of each decision to the policy that sampled; None: 0, two decisions a row.
        old_logprob: of each decision; None: -1.
        tokens: of each decision.
        states: that each decision is taken in; None: each its own.
        lengths: how many decisions of each row there are; None: all.
        entropy: of each decision.
        std: standard deviation of each Gaussian decision.
        values: further values of each decision.
        parts: what the reward ``steps`` says of each row's decisions, one by one.
        parts_of: what further rewards say of them, by name; NaN where nothing.
        sources: source of each row, numbers of ``Source``; None: all were sampled.
        turns: rewards of the environment, one turn each.
        keys: of the states that these were written in.
        columns: numbers of each row's data row, by name.
        named_rewards: values of single rewards of each row, by name; NaN where they do not apply.
        number: of the step in the run.
        sampled_by: which row sampled each decision; None: its own.
    """

    reward: Sequence[float]
    groups: Sequence[int] | None = None
    log_ratio: Rows | None = None
    old_logprob: Rows | None = None
    tokens: Sequence[Sequence[int]] | None = None
    states: Sequence[Sequence[int]] | None = None
    lengths: Sequence[int] | None = None
    entropy: Rows | None = None
    std: Rows | None = None
    values: Mapping[Value, Rows] = field(default_factory=dict)
    parts: Rows | None = None
    parts_of: Mapping[str, Rows] = field(default_factory=dict)
    sources: Sequence[int] | None = None
    turns: Rows | None = None
    keys: Sequence[Sequence[str]] = ()
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)
    named_rewards: Mapping[str, Sequence[float]] = field(default_factory=dict)
    number: int = 0
    sampled_by: Sequence[Sequence[int]] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T)."""
        values = (
            self.tokens
            or self.states
            or self.sampled_by
            or self.log_ratio
            or self.old_logprob
            or self.entropy
            or self.parts
        )
        return len(self.reward), len(values[0]) if values else max(self.lengths or [2])

    @property
    def group_B(self) -> Tensor:
        """Group of each row."""
        return torch.zeros(len(self.reward), dtype=torch.long) if self.groups is None else torch.tensor(self.groups)

    def matrix(self, rows: Rows | None, otherwise: float) -> Tensor:
        """(B, T), float64."""
        if rows is None:
            return torch.full(self.shape, otherwise, dtype=torch.float64)
        return torch.tensor(rows, dtype=torch.float64)

    @property
    def source_B(self) -> Tensor:
        """Source of each row."""
        return torch.zeros(len(self.reward), dtype=torch.long) if self.sources is None else torch.tensor(self.sources)

    @property
    def decision_values(self) -> dict[Value, Tensor]:
        """The values that the decisions have."""
        result = {} if self.entropy is None else {ENTROPY: self.matrix(self.entropy, 0.0)}
        return result | {value: self.matrix(rows, 0.0) for value, rows in self.values.items()}

    @property
    def scoped(self) -> dict[str, Scoped]:
        """What rewards say of parts."""
        steps = {} if self.parts is None else {"steps": self.parts}
        return {name: _per_decision(rows) for name, rows in {**steps, **self.parts_of}.items()}

    @property
    def exchanges(self) -> Turns | None:
        """The turns, if there are any."""
        return None if self.turns is None else Turns(rewards=_per_decision(self.turns), keys_B_S=self.keys)


def _per_decision(rows: Rows) -> Scoped:
    value_BT = torch.tensor(rows, dtype=torch.float64)
    scope_BT = torch.arange(value_BT.shape[1]).expand(value_BT.shape)
    return Scoped(scope_BT=scope_BT, value_BS=value_BT, valid_BS=~value_BT.isnan())


@dataclass(frozen=True, slots=True)
class StepAdvantages:
    """Advantages and mask that a method computes for rows.

    Attributes:
        advantage_BT: float64.
        mask_BT: bool, the decisions that train.
    """

    advantage_BT: Tensor
    mask_BT: Tensor


@dataclass(frozen=True, slots=True)
class StepLoss:
    """Loss of a method on rows.

    Attributes:
        value: the loss, a float64 scalar.
        gradient_BT: of the loss by the log-probabilities.
    """

    value: Tensor
    gradient_BT: Tensor


def config_of(name: str, over: Mapping[str, Any] | None = None) -> RunConfig:
    """A method over no model, with the values of dotted keys merged on top of it."""
    return load_config(f"methods/{name}", {"policy": None, **(over or {})})


def advantages_of(config: RunConfig, step: Step) -> StepAdvantages:
    """The advantages and the rows that train, by the section ``advantage``."""
    B, T = step.shape
    mask_BT = torch.ones(B, T, dtype=torch.bool)
    if step.lengths is not None:
        mask_BT = torch.arange(T) < torch.tensor(step.lengths)[:, None]
    value_B1 = torch.tensor(step.reward)[:, None]
    scores = Scores(names=("reward",), weight_R=torch.ones(1), value_BR=value_B1, valid_BR=torch.ones(B, 1).bool())
    is_apart = config.advantage.off_policy_baseline == "separate"
    compared_B = split_off_policy_groups(step.group_B, step.source_B != 0) if is_apart else step.group_B
    credit = group_advantages(scores, compared_B, Algorithm.of(config).advantages)
    mask_BT = mask_BT & credit.keep_B[:, None]
    feedback = feedback_of(
        step.reward,
        step.group_B.tolist(),
        mask=mask_BT.int().tolist(),
        tokens=step.tokens,
        states=step.states,
        values=step.decision_values,
        scoped=step.scoped,
        old_logprob=step.old_logprob,
        named_rewards=step.named_rewards,
        step=step.number,
        sampled_by=step.sampled_by,
    )
    columns = [column for estimator in Algorithm.of(config).advantages.estimators for column in estimator.memory]
    defaults = {column.name: torch.full((B,), column.default, dtype=torch.float64) for column in columns}
    row_columns = {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in step.columns.items()}
    feedback = replace(
        feedback, memory_columns=defaults, exchanges=step.exchanges, columns=row_columns, source_B=step.source_B
    )
    advantage_BT = credit.advantage_B[:, None].expand(B, T)
    for estimator in Algorithm.of(config).advantages.estimators:
        advantage_BT = estimator.assign(feedback, advantage_BT)
    for row_filter in Algorithm.of(config).advantages.filters:
        keep_BT = row_filter.keep(feedback, advantage_BT)
        mask_BT = mask_BT & (keep_BT if keep_BT.ndim == 2 else keep_BT[:, None])
    return StepAdvantages(advantage_BT.double(), mask_BT)


def loss(config: RunConfig, step: Step) -> float:
    """The loss of one update on the rows."""
    return float(loss_and_gradient(config, step).value)


def loss_and_gradient(config: RunConfig, step: Step) -> StepLoss:
    """The loss of one update on the rows, and its gradient."""
    objective, credit = Algorithm.of(config).objective, advantages_of(config, step)
    old_BT, mask_BT, shape = step.matrix(step.old_logprob, -1.0), credit.mask_BT, credit.mask_BT.shape
    totals = count(mask_BT, group_B=step.group_B)
    decisions = Decisions(
        logprob_BT=(old_BT + step.matrix(step.log_ratio, 0.0)).requires_grad_(),
        old_logprob_BT=old_BT,
        advantage_BT=credit.advantage_BT,
        mask_BT=mask_BT,
        weight_BT=objective.weights(mask_BT, totals),
        mean_weight_BT=objective.mean_weights(mask_BT, totals),
        segment_BT=torch.zeros(shape, dtype=torch.long),
        reward_BT=torch.tensor(step.reward, dtype=torch.float64)[:, None].expand(shape),
        group_BT=step.group_B[:, None].expand(shape),
        source_BT=step.source_B[:, None].expand(shape),
        std_BT=None if step.std is None else step.matrix(step.std, 0.0),
        num_groups=totals.num_groups,
        values=step.decision_values,
    )
    job_values = {value: detached(decisions, value)[mask_BT] for value in objective.job_values}
    selected = objective.selected(objective.modulated(decisions, job_values), job_values)
    value = objective(selected).value
    (gradient_BT,) = torch.autograd.grad(value, decisions.logprob_BT) if value.requires_grad else (old_BT * 0,)
    return StepLoss(value.detach(), gradient_BT)


TINY = ("nft", "luffy", "rl-plus", "ampo", "critique-grpo", "exgrpo", "rgr-grpo")
"""Methods whose loss is divided by a length of thousands."""


def assert_credit(name: str, step: Step, expected: Sequence[Sequence[float]]) -> None:
    """The advantages that a method gives the decisions of a step, some of which train."""
    advantages = advantages_of(config_of(name), step)
    assert bool(advantages.mask_BT.any(1).all())
    torch.testing.assert_close(advantages.advantage_BT, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=3e-6)


def assert_loss(name: str, step: Step, expected: float) -> None:
    """The loss of a method on a step."""
    assert loss(config_of(name), step) == pytest.approx(expected, rel=1e-5, abs=1e-10 if name in TINY else 2e-6)
