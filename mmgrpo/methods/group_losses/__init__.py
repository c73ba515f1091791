"""Methods of ``configs/methods/group_losses``."""
