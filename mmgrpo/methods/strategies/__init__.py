"""Methods of ``configs/methods/strategies``."""
