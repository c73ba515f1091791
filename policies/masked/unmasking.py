"""Unmasking: samples tokens at all masked positions and keeps some of them; the others stay masked.

Axes: N rows of one batch, L positions of an answer, m masked positions of a block, n unmasked positions, V tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..sampling import entropy, sample_tokens, self_certainty
from .masked_scoring import logits_of, tempered
from .masked_trace import TokenSampling
from .predictor import Condition, Predictor
from .unmasking_schedule import UnmaskingStep


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskingSampler:
    """Unmasking parameters.

    Attributes:
        steps: the unmasking steps.
        order: which sampled tokens are kept: confidence, random, left_to_right.
        sampling: the token distribution.
        stochastic: the stochastic steps; None: all. Other steps take the most likely tokens, and select without noise.
    """

    steps: Sequence[UnmaskingStep]
    order: str
    sampling: TokenSampling
    stochastic: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class UnmaskedAnswers:
    """Answers of a batch.

    Attributes:
        token_NL: the tokens.
        order_NL: the positions in unmasking order.
        logprob_NL: of each position in that order; float32.
        entropy_NL: of the distribution there.
        certainty_NL: KL(uniform || policy) there.
    """

    token_NL: Tensor
    order_NL: Tensor
    logprob_NL: Tensor
    entropy_NL: Tensor
    certainty_NL: Tensor

    def row(self, index: int) -> UnmaskedAnswers:
        """One of the answers."""
        return UnmaskedAnswers(*(tensor[index : index + 1] for tensor in self.tensors))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All fields, in order."""
        return self.token_NL, self.order_NL, self.logprob_NL, self.entropy_NL, self.certainty_NL

    @classmethod
    def joined(cls, parts: Sequence[UnmaskedAnswers]) -> UnmaskedAnswers:
        """The concatenated answers of several batches."""
        return cls(*map(torch.cat, zip(*(part.tensors for part in parts), strict=True)))


@torch.no_grad()
def unmask(
    predictor: Predictor,
    modules: Mapping[str, nn.Module],
    conditions: Sequence[Condition],
    seeds: Sequence[int],
    sampler: UnmaskingSampler,
) -> UnmaskedAnswers:
    """Answers of N rows, from fully masked ones.

    Each row has its own generator, with the same number of random numbers per step for any mask.

    Args:
        predictor: the model.
        modules: the modules to call.
        conditions: the rows' prompts, of one kind.
        seeds: of the rows' random numbers.
        sampler: the unmasking parameters.

    Returns:
        The answers, on the CPU.
    """
    N, L = len(conditions), predictor.spec.length
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    token_NL = torch.zeros(N, L, dtype=torch.long)
    masked_NL = torch.ones(N, L, dtype=torch.bool)
    untempered = replace(sampler.sampling, temperature=1.0)
    records = []
    for number, step in enumerate(sampler.steps):
        is_stochastic = sampler.stochastic is None or number in sampler.stochastic
        uniform_N2L = torch.stack([torch.rand(2, L, generator=generator) for generator in generators])
        logits_NLV = logits_of(predictor, modules, conditions, token_NL, masked_NL, sampler.sampling.guidance_scale)
        position_Nm = masked_NL[:, step.start : step.stop].nonzero()[:, 1].reshape(N, -1) + step.start
        index_Nm = position_Nm.to(logits_NLV.device)
        masked_logits_NmV = logits_NLV.gather(1, index_Nm[..., None].expand(-1, -1, logits_NLV.shape[-1]))
        logits_NmV = tempered(masked_logits_NmV, sampler.sampling, predictor.spec.suppressed_ids)
        sampled_Nm = logits_NmV.argmax(-1)
        if is_stochastic:
            uniform_Nm = uniform_N2L[:, 0].gather(1, position_Nm).to(logits_NmV.device)
            sampled_Nm = sample_tokens(logits_NmV.flatten(0, 1), uniform_Nm.flatten()).view_as(uniform_Nm)
        confidence_Nm = _logprobs(
            tempered(masked_logits_NmV, untempered, predictor.spec.suppressed_ids), sampled_Nm
        ).cpu()
        rank_Nm = _rank(
            sampler.order,
            confidence_Nm,
            position_Nm,
            uniform_N2L[:, 1].gather(1, position_Nm),
            noise=step.noise if is_stochastic else 0.0,
        )
        unmasked_Nn = rank_Nm.topk(step.count, dim=1).indices.sort(1).values
        order_Nn, token_Nn = position_Nm.gather(1, unmasked_Nn), sampled_Nm.cpu().gather(1, unmasked_Nn)
        token_NL = token_NL.scatter(1, order_Nn, token_Nn)
        masked_NL = masked_NL.scatter(1, order_Nn, value=False)
        values_Nm = _logprobs(logits_NmV, sampled_Nm), entropy(logits_NmV), self_certainty(logits_NmV)
        records.append((order_Nn, *(value_Nm.cpu().gather(1, unmasked_Nn) for value_Nm in values_Nm)))
    return UnmaskedAnswers(token_NL, *(torch.cat(column, dim=1) for column in zip(*records, strict=True)))


def _logprobs(logits: Tensor, token: Tensor) -> Tensor:
    """Log-probabilities of tokens, (..., V) and (...) -> (...)."""
    return logits.log_softmax(-1).gather(-1, token[..., None])[..., 0]


def _rank(order: str, logprob_Nm: Tensor, position_Nm: Tensor, uniform_Nm: Tensor, *, noise: float) -> Tensor:
    """The selection score, highest first: log-confidence with noise, a random number, or minus the position."""
    if order == "left_to_right":
        return -position_Nm
    if order == "random":
        return uniform_Nm
    if noise == 0:
        return logprob_Nm
    gumbel_Nm = -(-uniform_Nm.clamp(min=1e-20).log()).clamp(min=1e-20).log()
    return logprob_Nm + noise * gumbel_Nm
