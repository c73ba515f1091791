"""Rewards for pictures: from pixels, from models that score, from what is found in them."""
