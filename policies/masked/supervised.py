"""The warm-up's loss: what is hidden of an example, predicted from the rest.

Axes: N examples, L places of an answer, V tokens.
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
    """Mean over the examples of the mean cross-entropy of what is hidden, scalar with grad.

    k of L places are hidden, k as likely to be any of 1 to L, so L / k of the sum over them estimates minus the bound
    on the log-likelihood without bias, and its L-th part is their mean. Guidance and temperature have no part in it.

    Source: LLaDA, arXiv:2502.09992, eq. 3, with the exact count of its eq. 6 in place of independent places.
    """
    token_NL = torch.stack([predictor.target(example) for example in examples])
    L = token_NL.shape[1]
    hidden_NL = torch.zeros_like(token_NL, dtype=torch.bool)
    for row, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        num = int(torch.randint(1, L + 1, (), generator=generator))
        hidden_NL[row, torch.randperm(L, generator=generator)[:num]] = True
    known = {id(example.prompt): predictor.condition(example.prompt) for example in examples}
    conditions = [known[id(example.prompt)] for example in examples]
    alike: dict[object, list[int]] = {}
    for row, condition in enumerate(conditions):
        alike.setdefault(condition.kind, []).append(row)
    losses = []
    for rows in alike.values():
        of_rows = [conditions[row] for row in rows]
        logits_nLV = predictor.logits(modules, of_rows, token_NL[rows], hidden_NL[rows], guidance_scale=1.0)
        hidden_nL = hidden_NL[rows].to(logits_nLV.device)
        target_M = token_NL[rows].to(logits_nLV.device)[hidden_nL]
        loss_M = cross_entropy(logits_nLV[hidden_nL].float(), target_M, reduction="none")
        share_nL = hidden_nL / hidden_nL.sum(1, keepdim=True)
        losses.append((loss_M * share_nL[hidden_nL]).sum())
    return torch.stack(losses).sum() / len(examples)
