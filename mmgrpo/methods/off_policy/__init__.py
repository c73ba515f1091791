"""Methods of ``configs/methods/off_policy``."""
