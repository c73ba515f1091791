"""What a run is about to do, told from its configuration alone."""
