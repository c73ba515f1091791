"""Rewards: score samples, as ``mmgrpo.reward.Reward``."""
