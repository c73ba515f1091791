"""A diffusion policy for mmgrpo: chunks of a robot's actions, denoised from noise, in a simulated task."""

from pathlib import Path

DPPO = Path(__file__).with_name("dppo_episodes.yaml")
"""The method of arXiv:2409.00588, with a group in place of its critic."""
