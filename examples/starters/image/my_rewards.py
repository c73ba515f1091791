"""Custom rewards: one number per sample, None where the reward does not apply."""

from PIL import ImageStat

CHANNELS = {"red": 0, "green": 1, "blue": 2}


def tint(samples):
    """Mean of the row's color minus the mean of the other two colors, from -1 to 1; None for a row without a color."""
    return [score_tint(sample) if sample.prompt.columns.get("color") in CHANNELS else None for sample in samples]


def score_tint(sample):
    """The tint of one image."""
    means = ImageStat.Stat(sample.image.convert("RGB")).mean
    mean = means.pop(CHANNELS[sample.prompt.columns["color"]])
    return (mean - sum(means) / 2) / 255
