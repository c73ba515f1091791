"""Asks every reward about every sample: side by side where rewards allow it, and while the rest is still drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

from mmgrpo.errors import ConfigError
from mmgrpo.scoring.cache import fingerprints
from mmgrpo.scoring.inquiry import Answer, Judge, Token
from mmgrpo.scoring.named import NamedReward
from mmgrpo.scoring.reading import explanations_of, scopes_of
from mmgrpo.types import Sample, Scores

CACHE_MB = 64.0


@final
class Scorer:
    """Rewards that are asked again and again; what deterministic ones said is remembered from call to call.

    None means that the reward does not apply to the sample. NaN and infinity (in float32) count as failures of that
    sample; a reward that raises, or exceeds its ``timeout_s``, fails on every sample it was asked about. What failed is
    masked and counted, never a zero. A reward that can fail on single samples should return NaN for those.

    Rewards that allow it (``concurrent``) run on threads, beside each other and beside the others, which run one after
    the other on the caller's thread; every call waits for all of them.

    Attributes:
        names: the rewards', in their order.
        needs_values: names of ``Sample.values`` that they read, for ``Plan.sample_values``.
    """

    def __init__(
        self, rewards: Sequence[NamedReward], *, max_failure_frac: float = 0.25, cache_mb: float = CACHE_MB
    ) -> None:
        """Takes the rewards; none is called yet.

        Args:
            rewards: one or more, each with its own name.
            max_failure_frac: share of a scoring's samples on which a reward may fail.
            cache_mb: MiB that the results of each deterministic reward may take; 0 keeps none.

        Raises:
            ConfigError: there are no rewards, or two of one name.
        """
        self.names = tuple(reward.name for reward in rewards)
        if not rewards or len(set(self.names)) != len(self.names):
            raise ConfigError(f"rewards must be one or more, each with its own name, got {list(self.names)}")
        self.needs_values = tuple(sorted({name for reward in rewards for name in reward.needs_values or ()}))
        self._rewards, self._max_failure_frac, self._cache_mb = list(rewards), max_failure_frac, cache_mb
        self._weight_R = torch.tensor([reward.weight for reward in rewards], dtype=torch.float32)
        self._judges = [Judge(reward, max_failure_frac, int(cache_mb * 2**20)) for reward in rewards]

    def __call__(self, samples: Sequence[Sample]) -> Scores:
        """Asks every reward at most once.

        Args:
            samples: what is to be judged; whole groups, prompt-major.

        Returns:
            The scores.

        Raises:
            RewardError: at once for a reward that returns the wrong number of values or something other than numbers,
                or raises RewardError itself; and when one fails on more than ``max_failure_frac`` of the samples.
        """
        return self.open(group_sizes={}).scores(samples)

    def renewed(self, rewards: Sequence[NamedReward]) -> Scorer:
        """A scorer of the same rewards in other forms; what is known of one whose function is the same stays known.

        Args:
            rewards: one for each, in the same order.

        Returns:
            The scorer.
        """
        renewed = Scorer(rewards, max_failure_frac=self._max_failure_frac, cache_mb=self._cache_mb)
        pairs = zip(self._rewards, rewards, strict=True)
        kept = [before.function is after.function for before, after in pairs]
        judges = zip(self._judges, renewed._judges, kept, strict=True)
        renewed._judges = [mine if same else new for mine, new, same in judges]
        return renewed

    def try_out(self, samples: Sequence[Sample]) -> None:
        """Asks every reward about a few samples, only to see whether it answers at all; nothing is kept.

        Args:
            samples: what is to be judged.

        Raises:
            RewardError: a reward returns what no reward may return, or raises something, where any may fail it.
        """
        for judge in self._judges:
            judge.try_out(samples)

    def open(self, *, group_sizes: Mapping[int, int]) -> Scoring:
        """A scoring whose samples may come some at a time.

        Args:
            group_sizes: how many members make each group whole.

        Returns:
            The scoring.
        """
        return Scoring(self._judges, self._weight_R, group_sizes)


@dataclass(frozen=True, slots=True)
class _Early:
    """A sample that rewards on threads were asked about before its rollout was whole."""

    sample: Sample  # kept, so that its identity stays its own
    key: bytes | None
    tokens: Sequence[Token]


@final
class Scoring:
    """The scores of one rollout; rewards on threads are asked about its first groups while the rest is drawn."""

    def __init__(self, judges: Sequence[Judge], weight_R: torch.Tensor, group_sizes: Mapping[int, int]) -> None:
        self._weight_R = weight_R
        self._group_sizes = group_sizes
        self._judges = judges
        self._inquiries = [judge.inquire() for judge in judges]
        self._threaded = [r for r, judge in enumerate(judges) if judge.caller.threaded]
        self._others = [r for r, judge in enumerate(judges) if not judge.caller.threaded]
        self._unfinished: dict[int, list[Sample]] = {}
        self._early: dict[int, _Early] = {}

    def add(self, samples: Sequence[Sample]) -> None:
        """Takes samples of a rollout that is being drawn, in any order: ``Plan.on_samples``.

        Rewards on threads are asked about a group when it is whole; the others, and groups that never are, wait for
        ``scores``.
        """
        whole: list[Sample] = []
        for sample in samples:
            members = self._unfinished.setdefault(sample.group, [])
            members.append(sample)
            if len(members) == self._group_sizes.get(sample.group):
                whole += sorted(self._unfinished.pop(sample.group), key=lambda one: one.member)
        if whole and self._threaded:
            keys = self._keys(whole, self._threaded)
            asked = [self._inquiries[r].ask(whole, keys) for r in self._threaded]
            for sample, key, *tokens in zip(whole, keys, *asked, strict=True):
                self._early[id(sample)] = _Early(sample, key, tokens)

    def scores(self, samples: Sequence[Sample]) -> Scores:
        """Asks about everything that was not asked about yet, and waits for all answers.

        Args:
            samples: the whole rollout; those that ``add`` was given are known by identity.

        Returns:
            The scores, in the samples' order.

        Raises:
            RewardError: as ``Scorer.__call__``.
        """
        early = [self._early.get(id(sample)) for sample in samples]
        late = [row for row, known in enumerate(early) if known is None]
        late_keys = iter(self._keys([samples[row] for row in late], range(len(self._judges))))
        keys = [next(late_keys) if known is None else known.key for known in early]
        tokens_R: dict[int, Sequence[Token]] = {}
        for place, r in enumerate(self._threaded):
            new = iter(self._asked(r, samples, keys, late) if late or not samples else ())
            tokens_R[r] = [next(new) if known is None else known.tokens[place] for known in early]
        for r in self._others:
            tokens_R[r] = self._asked(r, samples, keys, range(len(samples)))
        answer_R = {r: self._inquiries[r].answer(tokens_R[r]) for r in (*self._others, *self._threaded)}
        return self._as_scores([answer_R[r] for r in range(len(self._judges))])

    def _asked(
        self, r: int, samples: Sequence[Sample], keys: Sequence[bytes | None], rows: Sequence[int]
    ) -> list[Token]:
        return self._inquiries[r].ask([samples[row] for row in rows], [keys[row] for row in rows])

    def _keys(self, samples: Sequence[Sample], asked: Iterable[int]) -> Sequence[bytes | None]:
        remembers = any(self._judges[r].cache is not None for r in asked)
        return fingerprints(samples) if remembers else [None] * len(samples)

    def _as_scores(self, answers: Sequence[Answer]) -> Scores:
        names = tuple(judge.name for judge in self._judges)
        said = dict(zip(names, answers, strict=True))
        value_RB = [[result.value for result in answer.results] for answer in answers]
        explained = {name: explanations_of(answer.results) for name, answer in said.items()}
        scopes = {name: scopes_of(answer.results) for name, answer in said.items()}
        return Scores(
            names=names,
            weight_R=self._weight_R,
            value_BR=torch.tensor([[value or 0.0 for value in values] for values in value_RB], dtype=torch.float32).T,
            valid_BR=torch.tensor([[value is not None for value in values] for values in value_RB]).T.bool(),
            failures={name: sum(result.failed for result in answer.results) for name, answer in said.items()},
            explanations={name: entries for name, entries in explained.items() if entries is not None},
            scopes={name: entries for name, entries in scopes.items() if entries is not None},
            cached={judge.name: said[judge.name].num_cached for judge in self._judges if judge.cache is not None},
            took_s={name: answer.took_s for name, answer in said.items()},
        )


def score(samples: Sequence[Sample], rewards: Sequence[NamedReward], *, max_failure_frac: float = 0.25) -> Scores:
    """What a ``Scorer`` of these rewards says, once."""
    return Scorer(rewards, max_failure_frac=max_failure_frac)(samples)
