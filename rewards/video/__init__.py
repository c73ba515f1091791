"""Rewards for videos."""
