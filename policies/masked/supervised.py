"""Supervised loss: masked tokens of an example, predicted from the unmasked ones.

Axes: N examples, L positions of an answer, V tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mmgrpo.types import Example

from .predictor import Predictor


def supervised_loss(
    predictor: Predictor, modules: Mapping[str, nn.Module], examples: Sequence[Example], seeds: Sequence[int]
) -> Tensor:
    """Mean over the examples of the mean cross-entropy of the masked tokens, scalar with grad.

    k of L positions are masked, k uniform from 1 to L: L / k times their summed cross-entropy is an unbiased estimate
    of minus the bound on the log-likelihood, and dividing by L gives their mean. Guidance and temperature do not apply.

    Source: LLaDA, arXiv:2502.09992, eq. 3, with the exact count of its eq. 6 instead of independent positions.
    """
    token_NL = torch.stack([predictor.target(example) for example in examples])
    L = token_NL.shape[1]
    masked_NL = torch.zeros_like(token_NL, dtype=torch.bool)
    for row, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        num = int(torch.randint(1, L + 1, (), generator=generator))
        masked_NL[row, torch.randperm(L, generator=generator)[:num]] = True
    condition_of = {id(example.prompt): predictor.condition(example.prompt) for example in examples}
    conditions = [condition_of[id(example.prompt)] for example in examples]
    rows_of: dict[object, list[int]] = {}
    for row, condition in enumerate(conditions):
        rows_of.setdefault(condition.kind, []).append(row)
    losses = []
    for rows in rows_of.values():
        kind_conditions = [conditions[row] for row in rows]
        logits_nLV = predictor.logits(modules, kind_conditions, token_NL[rows], masked_NL[rows], guidance_scale=1.0)
        masked_nL = masked_NL[rows].to(logits_nLV.device)
        target_M = token_NL[rows].to(logits_nLV.device)[masked_nL]
        loss_M = cross_entropy(logits_nLV[masked_nL].float(), target_M, reduction="none")
        share_nL = masked_nL / masked_nL.sum(1, keepdim=True)
        losses.append((loss_M * share_nL[masked_nL]).sum())
    return torch.stack(losses).sum() / len(examples)
