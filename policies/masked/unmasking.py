"""Fills in hidden answers: tokens drawn at all hidden places, some of them shown, the others hidden again.

Axes: N rows of one batch, L places of an answer, m hidden places of a block, n places shown, V tokens.
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
    """How answers are filled in.

    Attributes:
        reveals: the steps.
        order: which of the tokens drawn are shown: confidence, random, left_to_right.
        drawing: the distribution of tokens.
        stochastic: the steps that draw; None: all. The others take the likeliest tokens, and choose without noise.
    """

    reveals: Sequence[UnmaskingStep]
    order: str
    drawing: TokenSampling
    stochastic: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class UnmaskedAnswers:
    """Answers of a batch.

    Attributes:
        token_NL: the tokens.
        order_NL: the places in the order that they were shown in.
        logprob_NL: of each place of that order; float32.
        entropy_NL: of the distribution there.
        certainty_NL: KL(uniform || policy) there.
    """

    token_NL: Tensor
    order_NL: Tensor
    logprob_NL: Tensor
    entropy_NL: Tensor
    certainty_NL: Tensor

    def row(self, place: int) -> UnmaskedAnswers:
        """One of the answers."""
        return UnmaskedAnswers(*(tensor[place : place + 1] for tensor in self.tensors))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in their order."""
        return self.token_NL, self.order_NL, self.logprob_NL, self.entropy_NL, self.certainty_NL

    @classmethod
    def joined(cls, parts: Sequence[UnmaskedAnswers]) -> UnmaskedAnswers:
        """All answers of several."""
        return cls(*map(torch.cat, zip(*(one.tensors for one in parts), strict=True)))


@torch.no_grad()
def unmask(
    predictor: Predictor,
    modules: Mapping[str, nn.Module],
    conditions: Sequence[Condition],
    seeds: Sequence[int],
    sampler: UnmaskingSampler,
) -> UnmaskedAnswers:
    """Answers of N rows, all hidden at first.

    A row's numbers are those of its own generator, as many at each step whatever is left to be shown.

    Args:
        predictor: the model.
        modules: those to ask.
        conditions: the rows' prompts, of one kind.
        seeds: of the rows' random numbers.
        sampler: the steps.

    Returns:
        The answers, on the CPU.
    """
    N, L = len(conditions), predictor.facts.length
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    token_NL = torch.zeros(N, L, dtype=torch.long)
    hidden_NL = torch.ones(N, L, dtype=torch.bool)
    untempered = replace(sampler.drawing, temperature=1.0)
    shown = []
    for step, reveal in enumerate(sampler.reveals):
        draws = sampler.stochastic is None or step in sampler.stochastic
        uniform_N2L = torch.stack([torch.rand(2, L, generator=generator) for generator in generators])
        logits_NLV = logits_of(predictor, modules, conditions, token_NL, hidden_NL, sampler.drawing.guidance_scale)
        place_Nm = hidden_NL[:, reveal.start : reveal.stop].nonzero()[:, 1].reshape(N, -1) + reveal.start
        at_Nm = place_Nm.to(logits_NLV.device)
        own_NmV = logits_NLV.gather(1, at_Nm[..., None].expand(-1, -1, logits_NLV.shape[-1]))
        logits_NmV = tempered(own_NmV, sampler.drawing, predictor.facts.never)
        drawn_Nm = logits_NmV.argmax(-1)
        if draws:
            uniform_Nm = uniform_N2L[:, 0].gather(1, place_Nm).to(logits_NmV.device)
            drawn_Nm = sample_tokens(logits_NmV.flatten(0, 1), uniform_Nm.flatten()).view_as(uniform_Nm)
        sure_Nm = _of(tempered(own_NmV, untempered, predictor.facts.never), drawn_Nm).cpu()
        rank_Nm = _rank(
            sampler.order,
            sure_Nm,
            place_Nm,
            uniform_N2L[:, 1].gather(1, place_Nm),
            noise=reveal.noise if draws else 0.0,
        )
        shown_Nn = rank_Nm.topk(reveal.count, dim=1).indices.sort(1).values
        order_Nn, chosen_Nn = place_Nm.gather(1, shown_Nn), drawn_Nm.cpu().gather(1, shown_Nn)
        token_NL = token_NL.scatter(1, order_Nn, chosen_Nn)
        hidden_NL = hidden_NL.scatter(1, order_Nn, value=False)
        numbers = _of(logits_NmV, drawn_Nm), entropy(logits_NmV), self_certainty(logits_NmV)
        shown.append((order_Nn, *(each_Nm.cpu().gather(1, shown_Nn) for each_Nm in numbers)))
    return UnmaskedAnswers(token_NL, *(torch.cat(each, dim=1) for each in zip(*shown, strict=True)))


def _of(logits: Tensor, token: Tensor) -> Tensor:
    """Log-probabilities of tokens, (..., V) and (...) -> (...)."""
    return logits.log_softmax(-1).gather(-1, token[..., None])[..., 0]


def _rank(order: str, logprob_Nm: Tensor, place_Nm: Tensor, uniform_Nm: Tensor, *, noise: float) -> Tensor:
    """What is shown has most of it: the log-confidence and its noise, a random number, or how far left it stands."""
    if order == "left_to_right":
        return -place_Nm
    if order == "random":
        return uniform_Nm
    if noise == 0:
        return logprob_Nm
    gumbel_Nm = -(-uniform_Nm.clamp(min=1e-20).log()).clamp(min=1e-20).log()
    return logprob_Nm + noise * gumbel_Nm
