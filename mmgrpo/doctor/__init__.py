"""Checks a run before it starts, on its model and rewards."""
