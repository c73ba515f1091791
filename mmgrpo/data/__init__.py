"""Prompts: loading of rows with their chat messages and media, prompt samplers, and prompt templates."""
