"""Rewards that compare the members of a group, and rewards that adjust another one by its group."""
