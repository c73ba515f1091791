"""What the engine costs on top of the passes a training step cannot do without; run from the repository's root."""
