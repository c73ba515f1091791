"""Models that rewards judge with: loaded once, on one device, never unpickled."""
