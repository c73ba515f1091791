"""Methods of ``configs/methods/credit``."""
