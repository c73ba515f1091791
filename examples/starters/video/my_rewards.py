"""Custom rewards: one number per sample, None where the reward does not apply."""

import numpy as np


def movement(samples):
    """Mean absolute difference of neighboring frames, from 0 to 1."""
    return [score_movement(sample.video) for sample in samples]


def score_movement(frames):
    """The movement of one video, a list of images."""
    gray = np.stack([np.asarray(frame.convert("L"), float) / 255 for frame in frames])
    return float(np.abs(np.diff(gray, axis=0)).mean())
