"""Compares methods on one task over several seeds: plans and executes the runs."""
