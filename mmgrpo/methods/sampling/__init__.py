"""Methods of ``configs/methods/sampling``."""
