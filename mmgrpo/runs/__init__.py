"""A run and its folder: checkpoints, resuming, sample files, progress and alerts."""
