"""Adapters: turn a model of a library into an ``mmgrpo.policy.Policy``."""
