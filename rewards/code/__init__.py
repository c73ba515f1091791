"""Rewards that run generated code in a sandbox."""
