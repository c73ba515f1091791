"""Generates documentation pages and lists from the code and the YAML files: keys, rewards, methods, papers."""
