"""Rewards for images: from pixels, from models that score, from what is found in them."""
