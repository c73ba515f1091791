"""Inference engines: servers that generate the completions of a language policy (``rollout.engine``).

``ENGINES`` of ``mmgrpo.config.registry`` lists them; ``engine`` has their contract.
"""
