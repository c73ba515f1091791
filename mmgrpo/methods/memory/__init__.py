"""Methods of ``configs/methods/memory``."""
