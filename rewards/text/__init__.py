"""Rewards for what a text says and what form it has."""
