"""Asks every reward about every sample: side by side where rewards allow it, and only about what is not known yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.scoring.cache import ResultCache, fingerprints
from mmgrpo.scoring.calling import Caller
from mmgrpo.scoring.named import NamedReward
from mmgrpo.scoring.reading import FAILED, Result, explanations_of, read_results
from mmgrpo.types import Sample, Scores

logger = logging.getLogger(__name__)

CACHE_MB = 64.0
_traceback_shown: set[str] = set()  # reward names; one traceback per reward and process is enough


@final
class Scorer:
    """Rewards that are asked again and again; what deterministic ones said is remembered from call to call.

    None means that the reward does not apply to the sample. NaN and infinity (in float32) count as failures of that
    sample; a reward that raises, or exceeds its ``timeout_s``, fails on every sample it was asked about. What failed is
    masked and counted, never a zero. A reward that can fail on single samples should return NaN for those.

    Rewards that allow it (``concurrent``) run on threads, beside each other and beside the others, which run one after
    the other on the caller's thread; every call waits for all of them.
    """

    def __init__(
        self, rewards: Sequence[NamedReward], *, max_failure_frac: float = 0.25, cache_mb: float = CACHE_MB
    ) -> None:
        """Takes the rewards; none is called yet.

        Args:
            rewards: one or more, each with its own name.
            max_failure_frac: share of a call's samples on which a reward may fail.
            cache_mb: MiB that the results of each deterministic reward may take; 0 keeps none.

        Raises:
            ConfigError: there are no rewards, or two of one name.
        """
        self.names = tuple(reward.name for reward in rewards)
        if not rewards or len(set(self.names)) != len(self.names):
            raise ConfigError(f"rewards must be one or more, each with its own name, got {list(self.names)}")
        self._weight_R = torch.tensor([reward.weight for reward in rewards], dtype=torch.float32)
        self._inquiries = [_Inquiry(reward, max_failure_frac, int(cache_mb * 2**20)) for reward in rewards]

    def __call__(self, samples: Sequence[Sample]) -> Scores:
        """Calls every reward at most once.

        Args:
            samples: what is to be judged; whole groups, prompt-major.

        Returns:
            The scores.

        Raises:
            RewardError: at once for a reward that returns the wrong number of values or something other than numbers,
                or raises RewardError itself; and when one fails on more than ``max_failure_frac`` of the samples.
        """
        remembers = any(inquiry.cache is not None for inquiry in self._inquiries)
        keys = fingerprints(samples) if remembers else [None] * len(samples)
        threads_first = sorted(range(len(self._inquiries)), key=lambda i: not self._inquiries[i].caller.threaded)
        begun = {i: self._inquiries[i].begin(samples, keys) for i in threads_first}
        ended = {i: begun[i]() for i in reversed(threads_first)}  # threads go on while the others run here
        answers = [ended[i] for i in range(len(self._inquiries))]
        results_R_B = [answer.results for answer in answers]
        value_RB = [[result.value for result in results] for results in results_R_B]
        explained = {name: explanations_of(results) for name, results in zip(self.names, results_R_B, strict=True)}
        return Scores(
            names=self.names,
            weight_R=self._weight_R,
            value_BR=torch.tensor([[value or 0.0 for value in values] for values in value_RB], dtype=torch.float32).T,
            valid_BR=torch.tensor([[value is not None for value in values] for values in value_RB]).T.bool(),
            failures={
                name: sum(result.failed for result in results)
                for name, results in zip(self.names, results_R_B, strict=True)
            },
            explanations={name: said for name, said in explained.items() if said is not None},
            cached={
                name: answer.num_cached
                for name, answer, inquiry in zip(self.names, answers, self._inquiries, strict=True)
                if inquiry.cache is not None
            },
        )


def score(samples: Sequence[Sample], rewards: Sequence[NamedReward], *, max_failure_frac: float = 0.25) -> Scores:
    """What a ``Scorer`` of these rewards says, once."""
    return Scorer(rewards, max_failure_frac=max_failure_frac)(samples)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a reward said of every sample, and for how many of them it did not have to be asked."""

    results: Sequence[Result]
    num_cached: int


@final
class _Inquiry:
    """One reward, how it is called, and what it is known to say."""

    def __init__(self, reward: NamedReward, max_failure_frac: float, cache_bytes: int) -> None:
        self._name = reward.name
        self._max_failure_frac = max_failure_frac
        self.caller = Caller(reward.function, threaded=bool(reward.concurrent), timeout_s=reward.timeout_s)
        self.cache = ResultCache(cache_bytes) if reward.deterministic and cache_bytes > 0 else None

    def begin(self, samples: Sequence[Sample], keys: Sequence[bytes | None]) -> Callable[[], _Answer]:
        """Starts asking about what is not known, equal samples once; what is returned waits for the answer."""
        cache = self.cache
        own = [row if cache is None or key is None else key for row, key in enumerate(keys)]
        found = {} if cache is None else {key: cache.get(key) for key in own if isinstance(key, bytes)}
        known: dict[int | bytes, Result] = {key: result for key, result in found.items() if result is not None}
        row_of: dict[int | bytes, int] = {}
        for row, key in enumerate(own):
            if key not in known:
                row_of.setdefault(key, row)
        asked = [samples[row] for row in row_of.values()]
        call = self.caller.start(asked) if asked or not samples else list
        return partial(self._finish, own, list(row_of), known, call)

    def _finish(
        self,
        own: Sequence[int | bytes],
        asked: Sequence[int | bytes],
        known: Mapping[int | bytes, Result],
        call: Callable[[], Any],
    ) -> _Answer:
        found, error = self._results(call, len(asked))
        said = {**known, **dict(zip(asked, found, strict=True))}
        if self.cache is not None:
            for key in asked:
                if isinstance(key, bytes):
                    self.cache.put(key, said[key])
        results = [said[key] for key in own]
        self._check(sum(result.failed for result in results), len(results), error)
        return _Answer(results, len(own) - len(asked))

    def _results(self, call: Callable[[], Any], num_asked: int) -> tuple[list[Result], Exception | None]:
        """What it said, and what it raised, if so."""
        try:
            results = read_results(call(), num_asked)
        except RewardError as error:
            raise RewardError(f"reward '{self._name}': {error}") from error
        except Exception as error:  # a reward is foreign code: whatever it raises is a counted failure
            kind, first = type(error).__name__, self._name not in _traceback_shown
            _traceback_shown.add(self._name)
            said = "reward '%s' raised %s: %s; its %d samples are masked"
            logger.warning(said, self._name, kind, error, num_asked, exc_info=error if first else None)
            return [FAILED] * num_asked, error
        num_failed = sum(result.failed for result in results)
        if num_failed:
            said = "reward '%s' gave NaN or infinity for %d of %d samples; they are masked"
            logger.warning(said, self._name, num_failed, num_asked)
        return results, None

    def _check(self, num_failed: int, B: int, error: Exception | None) -> None:
        if num_failed <= self._max_failure_frac * B:
            return
        reason = "it gave NaN or infinity" if error is None else f"it raised {type(error).__name__}: {error}"
        raise RewardError(
            f"reward '{self._name}' failed on {num_failed} of {B} samples ({num_failed / B:.0%}), where at most "
            f"{self._max_failure_frac:.0%} may fail: {reason}. Mend the reward, let it return None for samples that it "
            f"does not apply to, or raise max_reward_failure_frac if such failures are expected."
        ) from error
