"""Rewards for images: from pixels, from scoring models, from detected objects and texts."""
