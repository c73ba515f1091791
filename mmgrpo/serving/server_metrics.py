"""Metrics of a reward server in the text format of Prometheus."""

from __future__ import annotations

from typing import final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@final
class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        names = ["reward"]
        self.requests = Counter("mmgrpo_requests", "Requests to score, by HTTP status.", ["status"], registry=registry)
        self.request_seconds = Histogram(
            "mmgrpo_request_seconds", "From body read to answer.", names, buckets=SECONDS, registry=registry
        )
        self.samples = Counter("mmgrpo_samples", "Samples scored.", names, registry=registry)
        self.failures = Counter("mmgrpo_failed_samples", "Samples that a reward failed on.", names, registry=registry)
        self.batch_seconds = Histogram(
            "mmgrpo_batch_seconds", "A call of a reward.", names, buckets=SECONDS, registry=registry
        )
        self.batch_samples = Histogram(
            "mmgrpo_batch_samples", "Samples in a call of a reward.", names, buckets=SIZES, registry=registry
        )

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
