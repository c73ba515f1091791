"""Custom rewards: one number per sample, None where the reward does not apply."""


def brevity(samples):
    """1 for an empty text, falling to 0 at 400 characters."""
    return [max(0.0, 1 - len(sample.text) / 400) for sample in samples]
