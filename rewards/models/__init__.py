"""Models used by rewards: loaded once, on one device, never unpickled."""
