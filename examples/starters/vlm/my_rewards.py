"""Custom rewards: one number per sample, None where the reward does not apply."""


def number_alone(samples):
    """1 if the text is a number and nothing else, else 0."""
    return [float(sample.text.strip().isdigit()) for sample in samples]
