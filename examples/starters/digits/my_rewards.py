"""Custom rewards: one number per sample, None where the reward does not apply."""

from PIL import ImageStat


def brightness(samples):
    """Mean gray level of each image, from 0 to 1."""
    return [ImageStat.Stat(sample.image.convert("L")).mean[0] / 255 for sample in samples]
