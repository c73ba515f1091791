"""Methods of ``configs/methods/surrogates``."""
