"""A server of rewards: ``mmgrpo serve-rewards CONFIG``."""
