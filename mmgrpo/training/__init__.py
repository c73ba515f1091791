"""The step: rollout, score, compute advantages, update; and the trainer that repeats it."""
