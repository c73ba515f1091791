"""Scorers: what judges samples, as ``mmgrpo.reward.Reward``."""
