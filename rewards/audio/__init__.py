"""Rewards for audio: level, length, text alignment and speech."""
