"""Rewards that ask: a vision-language model here, an endpoint, or a server of rewards."""
