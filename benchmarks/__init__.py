"""Measurements of the engine: its cost above the necessary forwards and backwards; run from the repository's root."""
