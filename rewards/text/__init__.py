"""Rewards for the content and the form of a text."""
