"""Calls every reward on every sample, in parallel where rewards allow it, and while the rollout is still running."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

from mmgrpo.errors import ConfigError
from mmgrpo.scoring.cache import fingerprints
from mmgrpo.scoring.named_rewards import NamedReward
from mmgrpo.scoring.result_parsing import Result, explanations_of, scopes_of
from mmgrpo.scoring.workers import CollectedResults, RewardWorker, SampleKey
from mmgrpo.types import Sample, Scores

CACHE_MB = 64.0


@final
class Scorer:
    """Calls a set of rewards repeatedly; caches the results of deterministic rewards between calls.

    None means that the reward does not apply to the sample. NaN and infinity (in float32) count as failures of that
    sample; a reward that raises, or exceeds its ``timeout_s``, fails on every sample of that call. Failures are masked
    and counted, never scored 0. A reward that can fail on single samples should return NaN for them.

    Rewards with ``concurrent`` run in parallel on threads; the others run sequentially on the caller's thread, while
    coroutine functions wait together. Every call waits for all rewards.

    Attributes:
        names: names of the rewards, in order.
        rewards: the rewards, for ``with_reward_inputs``.
    """

    def __init__(
        self, rewards: Sequence[NamedReward], *, max_failure_frac: float = 0.25, cache_mb: float = CACHE_MB
    ) -> None:
        """Store the rewards without calling them.

        Args:
            rewards: one or more, each with its own name.
            max_failure_frac: share of a rollout's samples on which a reward may fail.
            cache_mb: MiB that the results of each deterministic reward may take; 0 keeps none.

        Raises:
            ConfigError: there are no rewards, or two of one name.
        """
        self.names = tuple(reward.name for reward in rewards)
        if not rewards or len(set(self.names)) != len(self.names):
            raise ConfigError(f"rewards must be one or more, each with its own name, got {list(self.names)}")
        self.rewards = tuple(rewards)
        self._max_failure_frac, self._cache_mb = max_failure_frac, cache_mb
        self._weight_R = torch.tensor([reward.weight for reward in rewards], dtype=torch.float32)
        self._workers = [RewardWorker(reward, max_failure_frac, int(cache_mb * 2**20)) for reward in rewards]

    def __call__(self, samples: Sequence[Sample]) -> Scores:
        """Call every reward at most once.

        Args:
            samples: the samples to score; complete groups, prompt-major.

        Returns:
            The scores.

        Raises:
            RewardError: a reward returns the wrong number of values or values other than numbers, raises RewardError
                itself, or fails on more than ``max_failure_frac`` of the samples.
        """
        return self.open(group_sizes={}).collect(samples)

    def renewed(self, rewards: Sequence[NamedReward]) -> Scorer:
        """A scorer with other versions of the same rewards; rewards with an unchanged function keep their cache.

        Args:
            rewards: one per reward, in the same order.

        Returns:
            The scorer.
        """
        renewed = Scorer(rewards, max_failure_frac=self._max_failure_frac, cache_mb=self._cache_mb)
        pairs = zip(self.rewards, rewards, strict=True)
        unchanged = [before.function is after.function for before, after in pairs]
        workers = zip(self._workers, renewed._workers, unchanged, strict=True)
        renewed._workers = [existing if is_unchanged else new for existing, new, is_unchanged in workers]
        return renewed

    def comparing(self) -> Scorer | None:
        """A scorer of the rewards that may compare a sample with its group: those that are not deterministic.

        Returns:
            The scorer, which shares the call queues of this one; None if all rewards are deterministic.
        """
        return self._part([r for r, reward in enumerate(self.rewards) if not reward.deterministic])

    def by_place(self) -> tuple[Scorer | None, Scorer | None]:
        """A scorer of the rewards that read environments, which score samples in the process that sampled them, and one
        of the others; each shares the call queues and caches of this one.

        Returns:
            The scorers; None for one without rewards.
        """
        local = [r for r, reward in enumerate(self.rewards) if reward.reads_environments]
        return self._part(local), self._part([r for r in range(len(self.rewards)) if r not in local])

    def _part(self, chosen: Sequence[int]) -> Scorer | None:
        if not chosen:
            return None
        rewards = [self.rewards[r] for r in chosen]
        part = Scorer(rewards, max_failure_frac=self._max_failure_frac, cache_mb=self._cache_mb)
        part._workers = [self._workers[r] for r in chosen]
        return part

    def try_out(self, samples: Sequence[Sample]) -> None:
        """Call every reward on a few samples to check that it works; the results are discarded.

        Args:
            samples: the samples to score.

        Raises:
            RewardError: a reward returns invalid values, or raises while ``max_failure_frac`` is below 1.
        """
        samples = [sample for sample in samples if sample.is_scored]
        for worker in self._workers if samples else ():
            worker.try_out(samples)

    def open(self, *, group_sizes: Mapping[int, int]) -> PendingScores:
        """Scores whose samples are submitted incrementally.

        Args:
            group_sizes: number of members of each complete group.

        Returns:
            The pending scores.
        """
        return PendingScores(self._workers, self._weight_R, group_sizes)


@dataclass(frozen=True, slots=True)
class _SubmittedSample:
    """A sample that was submitted to threaded rewards before its rollout was complete."""

    sample: Sample  # referenced so that its id is not reused
    key: bytes | None
    result_keys: Sequence[SampleKey]


@final
class PendingScores:
    """The scores of one rollout; threaded rewards score its first groups while the rest is generated."""

    def __init__(self, workers: Sequence[RewardWorker], weight_R: torch.Tensor, group_sizes: Mapping[int, int]) -> None:
        self._weight_R = weight_R
        self._group_sizes = group_sizes
        self._workers = workers
        self._pending = [worker.open() for worker in workers]
        self._threaded = [r for r, worker in enumerate(workers) if worker.caller.threaded]
        self._others = [r for r, worker in enumerate(workers) if not worker.caller.threaded]
        self._unfinished: dict[int, list[Sample]] = {}
        self._early: dict[int, _SubmittedSample] = {}

    def submit(self, samples: Sequence[Sample]) -> None:
        """Take samples of a running rollout, in any order: ``Plan.on_samples``.

        Threaded rewards score a group when it is complete; other rewards, and incomplete groups, wait for ``collect``.
        """
        complete: list[Sample] = []
        for sample in samples:
            members = self._unfinished.setdefault(sample.group, [])
            members.append(sample)
            if len(members) == self._group_sizes.get(sample.group):
                complete += sorted(self._unfinished.pop(sample.group), key=lambda member: member.member)
        complete = [sample for sample in complete if sample.is_scored]
        if complete and self._threaded:
            keys = self._keys(complete, self._threaded)
            key_lists = [self._pending[r].submit(complete, keys) for r in self._threaded]
            for sample, key, *result_keys in zip(complete, keys, *key_lists, strict=True):
                self._early[id(sample)] = _SubmittedSample(sample, key, result_keys)

    def collect(self, samples: Sequence[Sample]) -> Scores:
        """Submit the remaining samples and wait for the rewards.

        Args:
            samples: the complete rollout; samples passed to ``submit`` are recognized by identity.

        Returns:
            The scores, in the order of the samples; failed samples have none, since no reward is called on them.

        Raises:
            RewardError: as ``Scorer.__call__``.
        """
        collected = self._collected([sample for sample in samples if sample.is_scored])
        return self._as_scores([_at_samples(results, samples) for results in collected])

    def _collected(self, samples: Sequence[Sample]) -> list[CollectedResults]:
        early = [self._early.get(id(sample)) for sample in samples]
        late = [row for row, entry in enumerate(early) if entry is None]
        late_keys = iter(self._keys([samples[row] for row in late], range(len(self._workers))))
        keys = [next(late_keys) if entry is None else entry.key for entry in early]
        result_keys_R: dict[int, Sequence[SampleKey]] = {}
        for index, r in enumerate(self._threaded):
            new = iter(self._submit_rows(r, samples, keys, late) if late else ())
            result_keys_R[r] = [next(new) if entry is None else entry.result_keys[index] for entry in early]
        for r in self._others:
            result_keys_R[r] = self._submit_rows(r, samples, keys, range(len(samples)))
        order = sorted(range(len(self._workers)), key=lambda r: self._workers[r].caller.launches)
        collected_R = {r: self._pending[r].collect(result_keys_R[r]) for r in order}
        return [collected_R[r] for r in range(len(self._workers))]

    def _submit_rows(
        self, r: int, samples: Sequence[Sample], keys: Sequence[bytes | None], rows: Sequence[int]
    ) -> list[SampleKey]:
        return self._pending[r].submit([samples[row] for row in rows], [keys[row] for row in rows])

    def _keys(self, samples: Sequence[Sample], reward_indices: Iterable[int]) -> Sequence[bytes | None]:
        remembers = any(self._workers[r].cache is not None for r in reward_indices)
        return fingerprints(samples) if remembers else [None] * len(samples)

    def _as_scores(self, collected: Sequence[CollectedResults]) -> Scores:
        names = tuple(worker.name for worker in self._workers)
        by_name = dict(zip(names, collected, strict=True))
        value_RB = [[result.value for result in reward_results.results] for reward_results in collected]
        explanations = {name: explanations_of(results.results) for name, results in by_name.items()}
        scopes = {name: scopes_of(results.results) for name, results in by_name.items()}
        return Scores(
            names=names,
            weight_R=self._weight_R,
            value_BR=torch.tensor([[value or 0.0 for value in values] for values in value_RB], dtype=torch.float32).T,
            valid_BR=torch.tensor([[value is not None for value in values] for values in value_RB]).T.bool(),
            failed={name: [result.failed for result in results.results] for name, results in by_name.items()},
            explanations={name: entries for name, entries in explanations.items() if entries is not None},
            scopes={name: entries for name, entries in scopes.items() if entries is not None},
            is_cached={
                worker.name: by_name[worker.name].cached for worker in self._workers if worker.cache is not None
            },
            duration_s={name: results.duration_s for name, results in by_name.items()},
        )


def _at_samples(collected: CollectedResults, samples: Sequence[Sample]) -> CollectedResults:
    """The results of the samples that did not fail, with empty results for those that did."""
    results, cached = iter(collected.results), iter(collected.cached)
    fails = [not sample.is_scored for sample in samples]
    return CollectedResults(
        [Result(None) if failed else next(results) for failed in fails],
        [False if failed else next(cached) for failed in fails],
        collected.duration_s,
    )


def score(samples: Sequence[Sample], rewards: Sequence[NamedReward], *, max_failure_frac: float = 0.25) -> Scores:
    """Score samples once with a ``Scorer`` of these rewards."""
    return Scorer(rewards, max_failure_frac=max_failure_frac)(samples)
