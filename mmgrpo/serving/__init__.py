"""Reward server: ``mmgrpo serve-rewards CONFIG``."""
