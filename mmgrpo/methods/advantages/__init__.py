"""Methods of ``configs/methods/advantages``."""
