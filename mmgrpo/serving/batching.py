"""Batches concurrent requests: one thread per reward, which waits briefly for more requests."""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, final

from mmgrpo.errors import RewardError
from mmgrpo.serving.server_metrics import Metrics
from mmgrpo.serving.wire import ScoreResponse, WireScope
from mmgrpo.types import Sample, Scope, Score


@dataclass(frozen=True, slots=True)
class _Task:
    samples: Sequence[Sample]
    answer: Future[ScoreResponse] = field(default_factory=Future)


class TooBusyError(RewardError):
    """The queue of the server is full."""


@final
class Batcher:
    """Scores requests with one reward, in batches of up to ``max_batch`` samples; a request is never split."""

    def __init__(
        self,
        name: str,
        reward: Callable[[Sequence[Sample]], Sequence[Any]],
        metrics: Metrics,
        *,
        max_batch: int = 64,
        window_s: float = 0.005,
        max_waiting: int = 4096,
    ) -> None:
        """Start the thread.

        Args:
            name: name of the reward in the metrics.
            reward: the reward; called only from that thread.
            metrics: metrics to update.
            max_batch: maximum number of samples per call, unless a single request has more.
            window_s: how long the first request of a batch waits for others.
            max_waiting: maximum number of queued samples; further requests raise TooBusyError.
        """
        self._name = name
        self._reward = reward
        self._metrics = metrics
        self._max_batch = max_batch
        self._window_s = window_s
        self._max_waiting = max_waiting
        self._tasks: queue.Queue[_Task | None] = queue.Queue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"reward {name}", daemon=True)
        self._thread.start()

    def submit(self, samples: Sequence[Sample]) -> Future[ScoreResponse]:
        """The pending response. Raises TooBusyError if too many samples are queued."""
        task = _Task(samples)
        with self._lock:
            if self._waiting and self._waiting + len(samples) > self._max_waiting:
                raise TooBusyError(f"{self._waiting} samples are already queued for reward '{self._name}'")
            self._waiting += len(samples)
        self._tasks.put(task)
        return task.answer

    def close(self, timeout_s: float | None = None) -> bool:
        """Stop the thread after the queued requests; returns whether it stopped in time. No call is interrupted."""
        self._tasks.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        deferred: _Task | None = None  # taken from the queue, but too large for the previous batch
        while (first := deferred or self._tasks.get()) is not None:
            batch, deferred, ended = self._next_batch(first)
            with self._lock:
                self._waiting -= sum(len(task.samples) for task in batch)
            active = [task for task in batch if task.answer.set_running_or_notify_cancel()]
            if active:
                self._answer(active)
            if ended:
                return

    def _next_batch(self, first: _Task) -> tuple[list[_Task], _Task | None, bool]:
        """The tasks of the next batch, the one that did not fit, and whether the queue is closed."""
        batch, num, until = [first], len(first.samples), time.monotonic() + self._window_s
        while num < self._max_batch:
            try:
                task = self._tasks.get(timeout=max(until - time.monotonic(), 0))
            except queue.Empty:
                break
            if task is None:
                return batch, None, True
            if num + len(task.samples) > self._max_batch:
                return batch, task, False
            batch.append(task)
            num += len(task.samples)
        return batch, None, False

    def _answer(self, batch: Sequence[_Task]) -> None:
        """Score all requests in one call; if the reward raises, score each request separately so that one does not
        fail the others.
        """
        try:
            answers = self._score([task.samples for task in batch])
        except BaseException as error:  # third-party code may raise anything, also SystemExit
            if len(batch) > 1:
                for task in batch:
                    self._answer([task])
                return
            answers = [_all_failed(len(batch[0].samples), error)]
        for task, answer in zip(batch, answers, strict=True):
            self._metrics.samples.labels(self._name).inc(len(task.samples))
            self._metrics.failures.labels(self._name).inc(len(answer.failed))
            task.answer.set_result(answer)

    def _score(self, requests: Sequence[Sequence[Sample]]) -> list[ScoreResponse]:
        """Score the requests in one call of the reward."""
        samples = merge_requests(requests)
        self._metrics.batch_samples.labels(self._name).observe(len(samples))
        with self._metrics.batch_seconds.labels(self._name).time():
            values = [_plain(value) for value in self._reward(samples)]
        if len(values) != len(samples):
            raise RewardError(f"the reward gave {len(values)} values for {len(samples)} samples")
        rest = iter(values)
        return [response_of(list(islice(rest, len(request)))) for request in requests]


def merge_requests(requests: Sequence[Sequence[Sample]]) -> list[Sample]:
    """The samples of several requests, with groups renumbered to be unique; a single request is unchanged."""
    if len(requests) == 1:
        return list(requests[0])
    number: dict[tuple[int, int], int] = {}
    return [
        replace(sample, group=number.setdefault((request, sample.group), len(number)))
        for request, samples in enumerate(requests)
        for sample in samples
    ]


def response_of(scores: Sequence[float | Score | None]) -> ScoreResponse:
    """The response for the samples of one request; NaN and infinity are failures."""
    numbers = [None if value is None else float(value) for value in scores]
    explanations = [_as_json(value.explanation) if isinstance(value, Score) else None for value in scores]
    parts = [_wire_scopes(value.scopes) if isinstance(value, Score) else None for value in scores]
    return ScoreResponse.model_validate(
        {
            "values": [value if value is not None and math.isfinite(value) else None for value in numbers],
            "failed": [i for i, value in enumerate(numbers) if value is not None and not math.isfinite(value)],
            "explanations": explanations if any(explanations) else None,
            "scopes": parts if any(sample_scopes is not None for sample_scopes in parts) else None,
        }
    )


def _plain(value: Any) -> float | Score | None:
    return value if value is None or isinstance(value, Score) else float(value)


def _as_json(explanation: Mapping[str, Any]) -> dict[str, Any] | None:
    """The explanation as JSON decodes it: tuples as lists, keys as strings, lone surrogates as question marks."""
    return json.loads(_sendable(json.dumps(dict(explanation), ensure_ascii=False))) or None


def _wire_scopes(scopes: Sequence[Scope] | None) -> list[WireScope] | None:
    if scopes is None:
        return None
    numbers = [None if scope.value is None else float(scope.value) for scope in scopes]
    failed = [number is not None and not math.isfinite(number) for number in numbers]
    return [
        WireScope(start=scope.start, end=scope.end, value=None if is_failed else number, failed=is_failed)
        for scope, number, is_failed in zip(scopes, numbers, failed, strict=True)
    ]


def _all_failed(num: int, error: BaseException) -> ScoreResponse:
    raised = _sendable(f"{type(error).__name__}: {error}"[:2000])
    return ScoreResponse(values=[None] * num, failed=list(range(num)), error=raised)


def _sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
