"""Describes a run from its configuration, without loading a model."""
