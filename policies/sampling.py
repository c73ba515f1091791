"""The sampling distribution of a token, used for sampling and scoring (apart from the temperature schedule)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from torch.utils.checkpoint import checkpoint

from .temperature_schedule import TemperatureSchedule

MIN_CHUNK = 16
NEVER = -1e30  # smaller logits are a model's own mark of forbidden tokens


class SamplingSettings(Protocol):
    """Settings of a sampling distribution, as in ``SamplingDistribution``."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def min_p(self) -> float | None: ...
    @property
    def temperature_schedule(self) -> TemperatureSchedule | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDistribution:
    """The function from logits to the sampling distribution.

    Attributes:
        temperature: divisor of the logits.
        top_k: keeps the k likeliest tokens, ties included.
        top_p: keeps the smallest set of likeliest tokens with this total probability.
        min_p: keeps tokens with at least this share of the likeliest token's probability.
        suppressed: (K,) token ids with probability 0.
        temperature_schedule: schedule that lowers the temperature of later tokens at sampling, not at scoring; None: no
            schedule.
        guidance: scale of classifier-free guidance; 1: the conditional distribution.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    suppressed: Tensor
    temperature_schedule: TemperatureSchedule | None = None
    guidance: float = 1.0

    @classmethod
    def of(cls, settings: SamplingSettings, suppressed: Tensor) -> SamplingDistribution:
        """The distribution of the settings, without these tokens."""
        return cls(
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            suppressed=suppressed,
            temperature_schedule=settings.temperature_schedule,
        )

    def settings(self) -> dict[str, float | int | None]:
        """The parameters of the distribution, by the names that ``with_settings`` takes."""
        return {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "min_p", "guidance")}

    def with_settings(self, record: Mapping[str, Any] | None) -> SamplingDistribution:
        """The distribution of a record of ``Rollout.record_B``; itself without a record, or if both are equal."""
        recorded = (record or {}).get("settings", self.settings())
        return self if recorded == self.settings() else replace(self, **recorded)

    def without(self, tokens: Iterable[int | None], *, keep: Sequence[int]) -> SamplingDistribution:
        """The same distribution with further suppressed tokens, except those of ``keep``; itself if there are none."""
        more = [token for token in tokens if token is not None and token not in keep]
        if not more:
            return self
        return replace(self, suppressed=torch.cat([self.suppressed, self.suppressed.new_tensor(more)]).unique())

    @property
    def truncates(self) -> bool:
        """Whether the support depends on the logits."""
        return self.top_k is not None or self.top_p is not None or self.min_p is not None

    @property
    def guides(self) -> bool:
        """Whether it needs conditional and unconditional logits."""
        return self.guidance != 1

    def guided(self, logits_MbV: Tensor) -> Tensor:
        """u + s (c - u), of conditional logits c and unconditional ones u; c alone if s is 1.

        Shapes: (M, 2, V), or (M, 1, V) -> (M, V).
        Source: classifier-free guidance, arXiv:2207.12598; of tokens, arXiv:2306.05284, sec. 2.
        """
        if not self.guides:
            return logits_MbV[:, 0]
        conditional_MV, unconditional_MV = logits_MbV.unbind(1)
        return unconditional_MV + self.guidance * (conditional_MV - unconditional_MV)

    def tempered(self, logits_MV: Tensor) -> Tensor:
        """Logits divided by the temperature, with suppressed tokens at minus infinity."""
        scaled_MV = logits_MV if self.temperature == 1 else logits_MV / self.temperature
        if len(self.suppressed) == 0:
            return scaled_MV
        return scaled_MV.index_fill(-1, self.suppressed.to(scaled_MV.device), -torch.inf)

    def cooled(self, logits_MV: Tensor, t: int | Tensor) -> Tensor:
        """Tempered logits divided by the schedule's factor for token t, or (M,) that of each row."""
        if self.temperature_schedule is None:
            return logits_MV
        if isinstance(t, int):
            return logits_MV / self.temperature_schedule.factor(t)
        return (
            logits_MV / logits_MV.new_tensor([self.temperature_schedule.factor(each) for each in t.tolist()])[:, None]
        )

    def support(self, logits_MV: Tensor) -> Tensor:
        """The tokens that can be sampled from tempered logits: top-k first, then the nucleus, then min-p.

        Shapes: (M, V) -> bool (M, V).
        """
        keep_MV = logits_MV > -torch.inf
        if self.top_k is not None and self.top_k < logits_MV.shape[-1]:
            keep_MV = keep_MV & (logits_MV >= logits_MV.topk(self.top_k).values[..., -1:])
        if self.top_p is not None and self.top_p < 1:
            sorted_MV, order_MV = logits_MV.where(keep_MV, -torch.inf).sort(descending=True)
            probability_MV = sorted_MV.softmax(-1)
            inside_MV = probability_MV.cumsum(-1) - probability_MV < self.top_p
            keep_MV = keep_MV & torch.zeros_like(keep_MV).scatter(-1, order_MV, inside_MV)
        if self.min_p is not None:
            floor = logits_MV.where(keep_MV, -torch.inf).amax(-1, keepdim=True) + torch.tensor(self.min_p).log()
            keep_MV = keep_MV & (logits_MV >= floor.to(logits_MV))
        return keep_MV


def sample_tokens(logits_NV: Tensor, uniform_N: Tensor) -> Tensor:
    """Tokens by inverse transform sampling with one uniform number per row, so that a row's token does not depend on
    others.

    Shapes: tempered logits (N, V), numbers in [0, 1) (N,) -> (N,).
    """
    cumulative_NV = logits_NV.softmax(-1).double().cumsum(-1)
    target_N1 = uniform_N[:, None].double() * cumulative_NV[:, -1:]
    return torch.searchsorted(cumulative_NV, target_N1, right=True)[:, 0].clamp(max=logits_NV.shape[-1] - 1)


def entropy(logits_MV: Tensor) -> Tensor:
    """Entropy of each distribution in nats, H = log sum exp l - sum p l; tokens at minus infinity are excluded.

    Shapes: (M, V) -> (M,).
    """
    finite_MV = logits_MV.masked_fill(logits_MV == -torch.inf, 0.0)
    return logits_MV.logsumexp(-1) - (logits_MV.softmax(-1) * finite_MV).sum(-1)


def mean_logprob(logits_MV: Tensor) -> Tensor:
    """Mean log-probability = mean l - log sum exp l, over all possible tokens.

    Shapes: (M, V) -> (M,).   Units: nats.
    """
    is_possible_MV = logits_MV > NEVER
    return logits_MV.where(is_possible_MV, 0.0).sum(-1) / is_possible_MV.sum(-1) - logits_MV.logsumexp(-1)


def self_certainty(logits_MV: Tensor) -> Tensor:
    """KL(uniform || policy) = log sum exp l - mean l - log V, over all possible tokens.

    Shapes: (M, V) -> (M,).
    """
    return -mean_logprob(logits_MV) - (logits_MV > NEVER).sum(-1).log()


def semantic_entropy(logits_MV: Tensor, embedding_VD: Tensor, *, num: int = 20) -> Tensor:
    """Entropy of the ``num`` likeliest tokens, weighted by their similarity: -H sum_{i != j} p_i p_j cos(e_i, e_j).

    H = -sum p log p over these tokens. It is negative if their embeddings are similar, and highest if they differ.

    Shapes: (M, V), (V, D) -> (M,).   Units: nats.
    Source: ROSE, arXiv:2601.05053, and its code (ZiqiZhao1/ROSE-rl, ``vllm_rollout_spmd.py``, cosine-entropy).
    """
    top_MK = logits_MV.topk(min(num, logits_MV.shape[-1]))
    logprob_MK = top_MK.values - logits_MV.logsumexp(-1, keepdim=True)
    probability_MK = logprob_MK.exp()
    vector_MKD = normalize(embedding_VD[top_MK.indices].float(), dim=-1)
    sum_MD = (probability_MK[..., None] * vector_MKD).sum(-2)
    similarity_M = sum_MD.square().sum(-1) - probability_MK.square().sum(-1)
    return similarity_M * (probability_MK * logprob_MK.masked_fill(logprob_MK == -torch.inf, 0.0)).sum(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """The possible tokens of each of M decisions, as lists of ids.

    Attributes:
        ids: all lists, concatenated; int32.
        counts: length of each list.
    """

    ids: Tensor
    counts: tuple[int, ...]

    def mask(self, vocabulary: int, device: torch.device) -> Tensor:
        """Bool (M, V)."""
        row = torch.arange(len(self.counts)).repeat_interleave(torch.tensor(self.counts))
        mask_MV = torch.zeros(len(self.counts), vocabulary, dtype=torch.bool, device=device)
        mask_MV[row.to(device), self.ids.long().to(device)] = True
        return mask_MV

    def part(self, start: int, stop: int) -> Support:
        """Consecutive decisions."""
        before, within = sum(self.counts[:start]), sum(self.counts[start:stop])
        return Support(self.ids[before : before + within], self.counts[start:stop])

    def at(self, keep_T: Tensor) -> Support:
        """The decisions where a mask is True; decisions beyond its end are dropped."""
        lists, positions = self.ids.split(self.counts), keep_T.nonzero()[:, 0].tolist()
        return Support(torch.cat([lists[t] for t in positions]), tuple(self.counts[t] for t in positions))

    @classmethod
    def of(cls, keep_MV: Tensor) -> list[Support]:
        """One support per row of a mask."""
        entries = keep_MV.nonzero().cpu()
        counts = keep_MV.sum(-1).tolist()
        return [cls(ids, (len(ids),)) for ids in entries[:, 1].int().split(counts)]

    @classmethod
    def single(cls, token_T: Tensor) -> Support:
        """The support of forced tokens: each is the only one."""
        return cls(token_T.int(), (1,) * len(token_T))

    @classmethod
    def concat(cls, parts: Sequence[Support]) -> Support:
        """The decisions of several supports, concatenated."""
        return cls(torch.cat([part.ids for part in parts]), tuple(n for part in parts for n in part.counts))


def token_logprobs(
    hidden_MD: Tensor,
    token_M: Tensor,
    logits_of: Callable[[Tensor], Tensor],
    sampling: SamplingDistribution,
    *,
    chunk: int,
    support: Support | None = None,
    extra_values: Sequence[Callable[[Tensor, Tensor, Tensor], Tensor]] = (),
    pair_values: Sequence[Callable[[Tensor, int], Tensor]] = (),
) -> tuple[Tensor, list[Tensor]]:
    """Log-probabilities of M tokens from the hidden states before them, with at most ``chunk`` rows of logits at once.

    Args:
        hidden_MD: hidden states.
        token_M: the tokens.
        logits_of: (m, D) -> (m, V) float32.
        sampling: the sampling distribution.
        chunk: rows of logits at once; the backward computes them again.
        support: the possible tokens, if sampling truncates.
        extra_values: further functions, (hidden states (m, D), logits (m, V), tokens (m,)) -> (m,).
        pair_values: functions of the distribution before truncation and of another one, (logits (m, V), number of the
            first of the m tokens) -> (m,).

    Returns:
        logprob_M, and a vector per function, those of pairs last; float32.
    """

    def scored(hidden_mD: Tensor, token_m: Tensor, start: int) -> tuple[Tensor, ...]:
        logits_mV = sampling.tempered(logits_of(hidden_mD))
        pairs = [pair_value(logits_mV, start) for pair_value in pair_values]
        if support is not None:
            keep_mV = support.part(start, start + len(token_m)).mask(logits_mV.shape[-1], logits_mV.device)
            logits_mV = logits_mV.masked_fill(~keep_mV, -torch.inf)
        logprob_m = -cross_entropy(logits_mV, token_m, reduction="none")
        return logprob_m, *(extra_value(hidden_mD, logits_mV, token_m) for extra_value in extra_values), *pairs

    chunk = max(chunk // (1 + len(pair_values)), MIN_CHUNK)
    if len(token_M) <= chunk:
        logprob_M, *extra = scored(hidden_MD, token_M, 0)
        return logprob_M, extra
    parts = []
    for start in range(0, len(token_M), chunk):
        rows = slice(start, start + chunk)
        if torch.is_grad_enabled():
            parts.append(checkpoint(scored, hidden_MD[rows], token_M[rows], start, use_reentrant=False))
        else:
            parts.append(scored(hidden_MD[rows], token_M[rows], start))
    logprob_M, *extra = (torch.cat(each) for each in zip(*parts, strict=True))
    return logprob_M, extra


@torch.no_grad()
def compute_supports(
    hidden_MD: Tensor,
    token_M: Tensor,
    logits_of: Callable[[Tensor], Tensor],
    sampling: SamplingDistribution,
    *,
    chunk: int,
) -> Support:
    """The possible tokens at each of M off-policy decisions; the sampled token is always included.

    Args:
        hidden_MD: hidden states.
        token_M: the sampled tokens.
        logits_of: (m, D) -> (m, V) float32.
        sampling: a distribution that truncates.
        chunk: rows of logits at once.

    Returns:
        The M supports.
    """
    supports: list[Support] = []
    chunk = max(chunk, MIN_CHUNK)
    for hidden_mD, token_m in zip(hidden_MD.split(chunk), token_M.split(chunk), strict=True):
        keep_mV = sampling.support(sampling.tempered(logits_of(hidden_mD)))
        supports += Support.of(keep_mV.scatter(-1, token_m[:, None], value=True))
    return Support.concat(supports)
