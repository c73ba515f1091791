"""Custom rewards: one number per sample, None where the reward does not apply."""

from PIL import Image, ImageStat

CHANNELS = {"red": 0, "green": 1, "blue": 2}


def recolored(samples):
    """How much more of the row's color the edited image has than the image of its prompt, from -1 to 1."""
    return [score_change(sample) for sample in samples]


def score_change(sample):
    """The change of one image: that of its color less the mean of the other two colors."""
    source = Image.open(sample.prompt.images[0])
    before, after = (ImageStat.Stat(image.convert("RGB")).mean for image in (source, sample.image))
    changes = [(new - old) / 255 for old, new in zip(before, after, strict=True)]
    change = changes.pop(CHANNELS[sample.prompt.columns["color"]])
    return (change - sum(changes) / 2) / 2
