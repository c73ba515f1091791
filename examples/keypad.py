"""Telephone keys: synthesized audio of three keys each, for a model that learns to recognize them.

A key is the sum of two sines, one of its row and one of its column (dual-tone multi-frequency signalling, ITU-T Q.23).
Levels, phases, lengths, pauses and noise are sampled from a seed: the same numbers each run.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from mmgrpo.errors import DataError
from mmgrpo.types import Audio, Example, Prompt

RATE = 8000  # Hz
DURATION_S = 1.0
NUM_KEYS = 3
QUESTION = "which keys ?"
KEYPAD = ("123", "456", "789", " 0 ")
ROW_HZ, COLUMN_HZ = (697, 770, 852, 941), (1209, 1336, 1477)
HERTZ = {key: (ROW_HZ[y], COLUMN_HZ[x]) for y, row in enumerate(KEYPAD) for x, key in enumerate(row) if key != " "}
PARTNER = dict(zip("0123456789", "6785930124", strict=True))
"""The key that each key is confused with; the mapping is an involution."""
SOUNDS, HELD_OUT = 800, 200


def keypad_questions() -> list[Prompt]:
    """The training clips, with the question which keys they are; the column ``text`` has the keys as words."""
    return list(_questions(SOUNDS, 0))


def held_out_keypad_questions() -> list[Prompt]:
    """The same question about held-out clips."""
    return list(_questions(HELD_OUT, 1))


def misheard_keys(fraction: float = 0.5, seed: int = 0) -> list[Example]:
    """The training clips with deliberately wrong keys in some answers, to warm up a model to a low accuracy.

    Each key is with probability ``fraction`` its ``PARTNER``, so a model that fits them is undecided between two keys
    at each position. The column ``text`` is the correct answer.

    Raises: DataError if the share is outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise DataError(f"fraction must be in [0, 1], got {fraction}")
    rng = np.random.RandomState(seed)  # the legacy generator: its stream is frozen across numpy versions
    return [
        Example(
            prompt=prompt,
            text=" ".join(PARTNER[key] if rng.rand() < fraction else key for key in prompt.columns["text"].split()),
        )
        for prompt in keypad_questions()
    ]


def pressed(keys: str, rng: np.random.RandomState) -> Audio:
    """The audio of a sequence of keys with noise; mono, one second at 8 kHz."""
    values_N = 0.02 * rng.randn(round(RATE * DURATION_S))
    slot_s = DURATION_S / len(keys)
    for index, key in enumerate(keys):
        length_s, amplitude = slot_s * rng.uniform(0.5, 0.8), rng.uniform(0.1, 0.4)
        start_s = slot_s * index + rng.uniform(0, slot_s - length_s)
        values_N[round(start_s * RATE) :][: round(length_s * RATE)] += _key(key, length_s, amplitude, rng)
    return Audio(torch.from_numpy(values_N.clip(-1, 1).astype(np.float32))[None], RATE)


def _key(key: str, length_s: float, amplitude: float, rng: np.random.RandomState) -> NDArray[np.float64]:
    time_N = np.arange(round(length_s * RATE)) / RATE
    tones = [np.sin(2 * np.pi * (hertz * time_N + rng.rand())) for hertz in HERTZ[key]]
    return amplitude * (tones[0] + tones[1])


@lru_cache(maxsize=2)
def _questions(count: int, seed: int) -> tuple[Prompt, ...]:
    rng = np.random.RandomState(seed)
    prompts = []
    for _ in range(count):
        keys = "".join(rng.choice(list(HERTZ), NUM_KEYS))
        prompts.append(Prompt(QUESTION, audios=(pressed(keys, rng),), columns={"text": " ".join(keys)}))
    return tuple(prompts)
