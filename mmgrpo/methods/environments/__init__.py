"""Methods of ``configs/methods/environments``."""
