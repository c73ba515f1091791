"""Rewards of sounds: their level and length, what they are said to be, and the words that are spoken in them."""
