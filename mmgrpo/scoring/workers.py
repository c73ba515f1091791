"""Submits samples without a cached result to one reward and collects the results."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, final

from mmgrpo.errors import RewardError
from mmgrpo.scoring.cache import ResultCache
from mmgrpo.scoring.form_hints import form_hint
from mmgrpo.scoring.global_state import Isolated
from mmgrpo.scoring.named_rewards import NamedReward, function_name
from mmgrpo.scoring.result_parsing import FAILED, Result, read_results
from mmgrpo.scoring.reward_calls import Caller, RewardCall
from mmgrpo.scoring.trl_form import TrlReward
from mmgrpo.types import Sample

logger = logging.getLogger(__name__)

SampleKey = int | bytes
"""Key of a sample's result: its fingerprint if results are cached, else a unique number."""

_traceback_logged: set[str] = set()  # reward names; one traceback per reward and process is enough


@dataclass(frozen=True, slots=True)
class CollectedResults:
    """The results of a reward for all samples.

    Attributes:
        results: one per sample.
        cached: whether each result is from the cache.
        duration_s: seconds that it ran.
    """

    results: Sequence[Result]
    cached: Sequence[bool]
    duration_s: float


@final
class RewardWorker:
    """One reward with its caller and its cache.

    Attributes:
        name: name of the reward.
        caller: calls it.
        needs_latents: whether it, or a reward that it wraps, reads ``Sample.latent``.
        cache: cached results; None if results are not cached.
    """

    def __init__(self, reward: NamedReward, max_failure_frac: float, cache_bytes: int) -> None:
        """Store the reward without calling it.

        Args:
            reward: the reward with its call settings.
            max_failure_frac: share of a rollout's samples on which it may fail.
            cache_bytes: memory limit of its cached results, if it is deterministic; 0 disables the cache.
        """
        self.name = reward.name
        self._function = reward.function
        function = Isolated(reward.name, reward.function)
        awaits = isinstance(reward.function, TrlReward) and reward.function.is_async
        self.caller = Caller(function, threaded=bool(reward.concurrent), awaits=awaits, timeout_s=reward.timeout_s)
        self.needs_latents = reward.needs_latents
        self.cache = ResultCache(cache_bytes) if reward.deterministic and cache_bytes > 0 else None
        self._needs_values = reward.needs_values or ()
        self._max_failure_frac = max_failure_frac

    def open(self) -> PendingResults:
        """The pending results of a rollout, with nothing submitted yet."""
        return PendingResults(self)

    def read(self, call: RewardCall, num_samples: int) -> tuple[list[Result], BaseException | None]:
        """The parsed results, and the exception that the reward raised, if any."""
        try:
            results = read_results(call.result(), num_samples)
        except RewardError as error:
            raise RewardError(f"reward '{self.name}': {error}") from error
        except (Exception, SystemExit) as error:  # foreign code: any exception, sys.exit too, is a counted failure
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
        """Raise RewardError if the reward raises; samples without a score are no error."""
        _, error = self.read(self.caller.start(list(samples)), len(samples))
        if error is not None and self._max_failure_frac < 1:
            hint = self.form_hint(samples)
            raise RewardError(
                f"reward '{self.name}' was called on {len(samples)} samples before training, and raised "
                f"{type(error).__name__}: {error}. {hint + ' ' if hint else ''}Fix the reward, or set "
                "runtime.max_reward_failure_frac to 1 if it may fail."
            ) from error

    def form_hint(self, samples: Sequence[Sample]) -> str:
        """The cause of a failed call, if it may be the form of the function; empty if not."""
        return form_hint(self._function, function_name(self._function), samples)

    def require_inputs(self, samples: Sequence[Sample]) -> None:
        """Raise RewardError for samples without the latents or the values that the reward reads."""
        missing = [name for name in self._needs_values if all(name not in sample.values for sample in samples)]
        if samples and missing:
            raise RewardError(
                f"reward '{self.name}' reads Sample.values of {', '.join(missing)}, which the samples of this policy "
                "do not have: use it with a policy that stores Plan.sample_values, or remove the reward"
            )
        if self.needs_latents and any(sample.latent is None for sample in samples):
            raise RewardError(
                f"reward '{self.name}' reads Sample.latent, which the samples of this policy do not have: use it with "
                "a diffusers pipeline that steps one latent per sample, or remove the reward"
            )

    def check(self, num_failed: int, B: int, error: BaseException | None) -> None:
        """Raise RewardError if too many samples failed."""
        if num_failed <= self._max_failure_frac * B:
            return
        reason = "it gave NaN or infinity" if error is None else f"it raised {type(error).__name__}: {error}"
        if error is not None and num_failed == B and (hint := self.form_hint(())):
            reason = f"{reason}. {hint.removesuffix('.')}"
        raise RewardError(
            f"reward '{self.name}' failed on {num_failed} of {B} samples ({num_failed / B:.0%}), where at most "
            f"{self._max_failure_frac:.0%} may fail: {reason}. Fix the reward, let it return None for samples that it "
            f"does not apply to, or raise runtime.max_reward_failure_frac if such failures are expected."
        ) from error


@final
class PendingResults:
    """The results of one reward for a rollout, submitted at once or incrementally; equal samples are scored once."""

    def __init__(self, worker: RewardWorker) -> None:
        self._worker = worker
        self._numbers = count()
        self._results: dict[SampleKey, Result] = {}
        self._calls: list[tuple[list[SampleKey], RewardCall]] = []
        self._submitted: set[SampleKey] = set()

    def submit(self, samples: Sequence[Sample], keys: Sequence[bytes | None]) -> list[SampleKey]:
        """Start a call with the samples whose result is neither cached nor pending.

        Args:
            samples: the samples to score.
            keys: their fingerprints; None where a sample has none.

        Returns:
            One key per sample, for ``collect``.

        Raises:
            RewardError: it reads latents or values that the samples do not have.
        """
        self._worker.require_inputs(samples)
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
        if new:
            self._submitted |= new.keys()
            self._calls.append((list(new), self._worker.caller.start(list(new.values()))))
        return result_keys

    def collect(self, result_keys: Sequence[SampleKey]) -> CollectedResults:
        """Wait for all submitted samples.

        Args:
            result_keys: one per sample, as ``submit`` returned them.

        Returns:
            The results, in the order of the keys.

        Raises:
            RewardError: the reward returns invalid values, or fails on too many samples.
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
        duration_s = sum(call.duration_s for _, call in self._calls)
        return CollectedResults(results, self._cached(result_keys), duration_s)

    def _cached(self, result_keys: Sequence[SampleKey]) -> list[bool]:
        """Whether each result was cached: all but the first use of each submitted result."""
        submitted = {result_key for keys, _ in self._calls for result_key in keys}
        cached = []
        for result_key in result_keys:
            cached.append(result_key not in submitted)
            submitted.discard(result_key)
        return cached
