"""A run examined before it starts, on its own model and rewards."""
