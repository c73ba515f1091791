"""A held-out reward with scores that a test writes."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from mmgrpo.types import Sample

SCORES: list[float | None] = []
"""What the held-out reward is to say at each evaluation to come; those before are gone."""


def held_out(samples: Sequence[Sample]) -> list[float | None]:
    """As scripted; at its end the process gets a signal to end."""
    if not SCORES:
        os.kill(os.getpid(), signal.SIGTERM)
        return [0.0] * len(samples)
    score = SCORES.pop(0)
    return [score] * len(samples)
