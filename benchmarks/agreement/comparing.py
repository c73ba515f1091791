"""Numbers of a method and of its authors' code, of random rows.

Axes: P groups, G rows of a group, B = P * G rows, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.agreement.authors import Source, commit_of, taken
from mmgrpo.config import RunConfig
from tests.configs.method_steps import Step, advantages_of, config_of, loss_and_gradient

P, G, T = 4, 5, 7
DRAWS = 50

Numbers = Mapping[str, Tensor]
"""The compared numbers, by name."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Random rows of ragged lengths; all rewards of the first group are equal, now 1 and now 0.

    Attributes:
        seed: of the draw.
        right_B: rewards of 0 and 1, float64.
        reward_B: rewards of any size, float64; equal in the first group.
        group_B: integer group of each row, group by group.
        mask_BT: bool.
        old_logprob_BT: float64, below 0.
        logprob_BT: of the current policy, below 0.
        token_BT: tokens of two kinds; no two rows have the same padding.
    """

    seed: int
    right_B: Tensor
    reward_B: Tensor
    group_B: Tensor
    mask_BT: Tensor
    old_logprob_BT: Tensor
    logprob_BT: Tensor
    token_BT: Tensor

    def spread(self, value_B: Tensor) -> Tensor:
        """A row's number as rewards of its decisions, all in the first. Shapes: (B,) -> (B, T)."""
        return torch.cat([value_B[:, None], value_B.new_zeros(len(value_B), T - 1)], dim=1)

    def step(self, reward_B: Tensor, **further: Any) -> Step:
        """The same rows as our methods take them."""
        lengths = self.mask_BT.sum(1).tolist()
        return Step(
            reward=reward_B.tolist(),
            groups=self.group_B.tolist(),
            old_logprob=self.old_logprob_BT.tolist(),
            log_ratio=(self.logprob_BT - self.old_logprob_BT).tolist(),
            tokens=self.token_BT.tolist(),
            lengths=lengths,
            **further,
        )


def random_rows(seed: int) -> Rows:
    """The rows of a seed."""
    random = torch.Generator().manual_seed(seed)
    B = P * G
    length_B1 = torch.randint(1, T + 1, (B, 1), generator=random)
    mask_BT = torch.arange(T) < length_B1
    right_B = torch.randint(0, 2, (B,), generator=random).double()
    reward_B = torch.randn(B, generator=random, dtype=torch.float64)
    right_B[:G], reward_B[:G] = float(seed % 2), float(seed % 2)
    old_BT = -3 * torch.rand(B, T, generator=random, dtype=torch.float64) - 1e-3
    change_BT = 0.3 * torch.randn(B, T, generator=random, dtype=torch.float64)
    token_BT = torch.randint(0, 2, (B, T), generator=random)
    return Rows(
        seed=seed,
        right_B=right_B,
        reward_B=reward_B,
        group_B=torch.arange(P).repeat_interleave(G),
        mask_BT=mask_BT,
        old_logprob_BT=old_BT,
        logprob_BT=(old_BT + change_BT).clamp(max=-1e-3),
        token_BT=token_BT.where(mask_BT, 100 + torch.arange(B)[:, None]),
    )


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The inputs of an author's loss: the rows, and the advantages and the mask of our method.

    Attributes:
        rows: the rows.
        logprob_BT: theirs, with grad.
        advantage_BT: 0 where the mask is.
        mask_BT: 0 or 1, float64.
    """

    rows: Rows
    logprob_BT: Tensor
    advantage_BT: Tensor
    mask_BT: Tensor

    @property
    def old_BT(self) -> Tensor:
        """Log-probabilities under the policy that sampled."""
        return self.rows.old_logprob_BT


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A comparison of a method with its authors' code.

    Attributes:
        method: a file of ``configs/methods``.
        source: of the authors.
        theirs: their numbers of the rows.
        ours: our numbers of the rows.
        note: the part that is compared, if not all of it, or the setting of theirs that is used.
    """

    method: str
    source: Source
    theirs: Callable[[SimpleNamespace, Rows], Numbers]
    ours: Callable[[Rows], Numbers]
    note: str = ""


def advantage(
    method: str,
    source: Source,
    theirs: Callable[[SimpleNamespace, Rows], Tensor],
    *,
    over: Mapping[str, Any] | None = None,
    step: Callable[[Rows], Step] = lambda rows: rows.step(rows.reward_B),
    note: str = "",
) -> Case:
    """A comparison of advantages, (B, T); ``over`` overrides the method's file."""
    config = config_of(method, over)

    def ours(rows: Rows) -> Numbers:
        return {"advantage": advantages_of(config, step(rows)).advantage_BT.where(rows.mask_BT, 0.0)}

    def of_theirs(functions: SimpleNamespace, rows: Rows) -> Numbers:
        return {"advantage": theirs(functions, rows).double().where(rows.mask_BT, 0.0)}

    return Case(method=method, source=source, theirs=of_theirs, ours=ours, note=note)


def loss(
    method: str,
    source: Source,
    theirs: Callable[[SimpleNamespace, LossInputs], Tensor],
    *,
    over: Mapping[str, Any] | None = None,
    step: Callable[[Rows], Step] = lambda rows: rows.step(rows.reward_B),
    only: Sequence[str] = ("value", "gradient"),
    note: str = "",
) -> Case:
    """A comparison of losses and of their gradients by the log-probabilities."""
    config = config_of(method, over)

    def ours(rows: Rows) -> Numbers:
        result = loss_and_gradient(config, step(rows))
        return _chosen({"value": result.value, "gradient": result.gradient_BT}, only)

    def of_theirs(functions: SimpleNamespace, rows: Rows) -> Numbers:
        inputs = _loss_inputs(config, rows, step(rows))
        value = theirs(functions, inputs)
        (gradient_BT,) = torch.autograd.grad(value, inputs.logprob_BT)
        return _chosen({"value": value.detach(), "gradient": gradient_BT}, only)

    return Case(method=method, source=source, theirs=of_theirs, ours=ours, note=note)


def _loss_inputs(config: RunConfig, rows: Rows, step: Step) -> LossInputs:
    credit = advantages_of(config, step)
    return LossInputs(
        rows=rows,
        logprob_BT=rows.logprob_BT.clone().requires_grad_(),
        advantage_BT=credit.advantage_BT.where(credit.mask_BT, 0.0),
        mask_BT=credit.mask_BT.double(),
    )


def _chosen(numbers: Numbers, only: Sequence[str]) -> Numbers:
    return {name: numbers[name] for name in only}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The result of a case.

    Attributes:
        case: the case.
        commit: of the authors' clone; None: there is none.
        difference: the largest absolute difference, by what is compared.
        size: the largest absolute number that was compared, of ours.
    """

    case: Case
    commit: str | None
    difference: Mapping[str, float] = field(default_factory=dict)
    size: Mapping[str, float] = field(default_factory=dict)


def agreement(folder: Path, case: Case, draws: int = DRAWS) -> Agreement:
    """The case on random rows of seeds 0 and up."""
    result = Agreement(case=case, commit=commit_of(folder, case.source.repo))
    if result.commit is None:
        return result
    functions = taken(folder, case.source)
    difference: dict[str, float] = {}
    size: dict[str, float] = {}
    for rows in map(random_rows, range(draws)):
        for name, ours, theirs in _number_pairs(case.ours(rows), case.theirs(functions, rows)):
            distance = (ours - theirs).abs().max()
            difference[name] = float(torch.maximum(distance, torch.tensor(difference.get(name, 0.0))))
            size[name] = max(size.get(name, 0.0), float(ours.abs().max()))
    return replace(result, difference=difference, size=size)


def _number_pairs(ours: Numbers, theirs: Numbers) -> Iterator[tuple[str, Tensor, Tensor]]:
    for name in ours:
        yield name, ours[name].double(), theirs[name].double()
