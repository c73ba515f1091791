"""Prompts: read from what people have, row by row, with their turns, images and videos."""
