"""Methods of ``configs/methods/views``."""
