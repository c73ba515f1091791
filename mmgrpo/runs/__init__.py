"""A run while it goes on and what it leaves: its processes, folder, checkpoints, samples, progress and alarms."""
