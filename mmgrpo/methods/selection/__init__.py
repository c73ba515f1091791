"""Methods of ``configs/methods/selection``."""
