"""The seed of an episode, from the row that it belongs to."""

from __future__ import annotations

from mmgrpo.errors import DataError
from mmgrpo.types import Prompt


def seed_of(prompt: Prompt, name: str) -> int:
    """The integer in the column ``seed``, so that the members of a group have the same episode.

    Args:
        prompt: the row.
        name: the environment, for the message.

    Returns:
        The seed.

    Raises:
        DataError: there is none.
    """
    seed = prompt.columns.get("seed")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise DataError(f"{name} needs an integer in the column 'seed' of the row, got {seed!r:.50}")
    return seed
