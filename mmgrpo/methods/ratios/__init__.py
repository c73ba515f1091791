"""Methods of ``configs/methods/ratios``."""
