"""Custom rewards: one number per sample, None where the reward does not apply."""


def steadiness(samples):
    """The level of the quietest tenth of a sound over that of the loudest, from 0 to 1."""
    return [score_steadiness(sample.audio) for sample in samples]


def score_steadiness(audio):
    """The steadiness of one sound: audio.values has its channels, audio.sampling_rate samples a second."""
    levels = [float(part.square().mean().sqrt()) for part in audio.values.mean(0).chunk(10)]
    return min(levels) / max(max(levels), 1e-8)
