"""Submits samples to one reward, only those whose result is not known, and collects the results."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, final

from mmgrpo.errors import RewardError
from mmgrpo.scoring.cache import ResultCache
from mmgrpo.scoring.global_state import Isolated
from mmgrpo.scoring.named_rewards import NamedReward
from mmgrpo.scoring.result_parsing import FAILED, Result, read_results
from mmgrpo.scoring.reward_calls import Caller, RewardCall
from mmgrpo.types import Sample

logger = logging.getLogger(__name__)

SampleKey = int | bytes
"""What a sample's result goes by: its fingerprint where known results are kept, or a number of its own."""

_traceback_logged: set[str] = set()  # reward names; one traceback per reward and process is enough


@dataclass(frozen=True, slots=True)
class CollectedResults:
    """What a reward said of every sample.

    Attributes:
        results: one per sample.
        cached: for which of them it did not have to be asked.
        took_s: seconds that it ran.
    """

    results: Sequence[Result]
    cached: Sequence[bool]
    took_s: float


@final
class RewardWorker:
    """One reward, how it is called, and what it is known to say.

    Attributes:
        name: the reward's.
        caller: calls it.
        cache: known results, if they are kept.
    """

    def __init__(self, reward: NamedReward, max_failure_frac: float, cache_bytes: int) -> None:
        """Takes the reward; it is not called yet.

        Args:
            reward: the reward, and how it is called.
            max_failure_frac: share of a rollout's samples on which it may fail.
            cache_bytes: what its known results may take, if it is deterministic; 0 keeps none.
        """
        self.name = reward.name
        function = Isolated(reward.name, reward.function)
        self.caller = Caller(function, threaded=bool(reward.concurrent), timeout_s=reward.timeout_s)
        self.cache = ResultCache(cache_bytes) if reward.deterministic and cache_bytes > 0 else None
        self._max_failure_frac = max_failure_frac

    def open(self) -> PendingResults:
        """The results of a rollout, of which nothing is submitted yet."""
        return PendingResults(self)

    def read(self, call: RewardCall, num_samples: int) -> tuple[list[Result], BaseException | None]:
        """What it said, and what it raised, if so."""
        try:
            results = read_results(call.result(), num_samples)
        except RewardError as error:
            raise RewardError(f"reward '{self.name}': {error}") from error
        except (Exception, SystemExit) as error:  # foreign code: whatever it raises, sys.exit too, is a counted failure
            kind, first = type(error).__name__, self.name not in _traceback_logged
            _traceback_logged.add(self.name)
            returned = "reward '%s' raised %s: %s; its %d samples are masked"
            logger.warning(returned, self.name, kind, error, num_samples, exc_info=error if first else None)
            return [FAILED] * num_samples, error
        num_failed = sum(result.failed for result in results)
        if num_failed:
            returned = "reward '%s' gave NaN or infinity for %d of %d samples; they are masked"
            logger.warning(returned, self.name, num_failed, num_samples)
        return results, None

    def try_out(self, samples: Sequence[Sample]) -> None:
        """Raises RewardError if it cannot answer at all; a sample that it gives no number for is no reason."""
        _, error = self.read(self.caller.start(list(samples)), len(samples))
        if error is not None and self._max_failure_frac < 1:
            raise RewardError(
                f"reward '{self.name}' was tried on {len(samples)} samples before anything was trained, and raised "
                f"{type(error).__name__}: {error}. Mend the reward, or set max_reward_failure_frac to 1 if it may fail."
            ) from error

    def check(self, num_failed: int, B: int, error: BaseException | None) -> None:
        """Raises RewardError if too many failed."""
        if num_failed <= self._max_failure_frac * B:
            return
        reason = "it gave NaN or infinity" if error is None else f"it raised {type(error).__name__}: {error}"
        raise RewardError(
            f"reward '{self.name}' failed on {num_failed} of {B} samples ({num_failed / B:.0%}), where at most "
            f"{self._max_failure_frac:.0%} may fail: {reason}. Mend the reward, let it return None for samples that it "
            f"does not apply to, or raise max_reward_failure_frac if such failures are expected."
        ) from error


@final
class PendingResults:
    """One reward's results of a rollout, submitted at once or some samples at a time; equal samples only once."""

    def __init__(self, worker: RewardWorker) -> None:
        self._worker = worker
        self._numbers = count()
        self._results: dict[SampleKey, Result] = {}
        self._calls: list[tuple[list[SampleKey], RewardCall]] = []
        self._submitted: set[SampleKey] = set()

    def submit(self, samples: Sequence[Sample], keys: Sequence[bytes | None]) -> list[SampleKey]:
        """Begins a call with the samples whose result is neither known nor on its way.

        Args:
            samples: what is to be judged.
            keys: their fingerprints, where there are any.

        Returns:
            One key per sample, to collect by.
        """
        cache = self._worker.cache
        result_keys = [next(self._numbers) if cache is None or key is None else key for key in keys]
        new: dict[SampleKey, Any] = {}
        for result_key, sample in zip(result_keys, samples, strict=True):
            if result_key in self._results or result_key in self._submitted or result_key in new:
                continue
            result = cache.get(result_key) if cache is not None and isinstance(result_key, bytes) else None
            if result is None:
                new[result_key] = sample
            else:
                self._results[result_key] = result
        if new or not samples:
            self._submitted |= new.keys()
            self._calls.append((list(new), self._worker.caller.start(list(new.values()))))
        return result_keys

    def collect(self, result_keys: Sequence[SampleKey]) -> CollectedResults:
        """Waits for everything that was submitted.

        Args:
            result_keys: one per sample, as ``submit`` gave them.

        Returns:
            The results, in the keys' order.

        Raises:
            RewardError: the reward says what no reward may say, or fails on too many samples.
        """
        cause = None
        for submitted, call in self._calls:
            results, error = self._worker.read(call, len(submitted))
            cause = cause or error
            self._results |= zip(submitted, results, strict=True)
            for result_key in submitted:
                if self._worker.cache is not None and isinstance(result_key, bytes):
                    self._worker.cache.put(result_key, self._results[result_key])
        results = [self._results[result_key] for result_key in result_keys]
        self._worker.check(sum(result.failed for result in results), len(results), cause)
        took_s = sum(call.took_s for _, call in self._calls)
        return CollectedResults(results, self._cached(result_keys), took_s)

    def _cached(self, result_keys: Sequence[SampleKey]) -> list[bool]:
        """All but the first of each result that was asked for."""
        submitted = {result_key for keys, _ in self._calls for result_key in keys}
        cached = []
        for result_key in result_keys:
            cached.append(result_key not in submitted)
            submitted.discard(result_key)
        return cached
