"""Rewards for where things are, and for the actions of agents that point at them."""
