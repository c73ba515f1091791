"""Tiny, randomly initialised, real diffusers pipelines that run from text prompts without any download."""
