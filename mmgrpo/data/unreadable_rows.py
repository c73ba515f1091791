"""Unreadable rows: they raise an error that names the first one, or are skipped, counted and named in a warning."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import final

from mmgrpo.config import HeldOutPromptsConfig, PromptsConfig
from mmgrpo.data.image_loading import load_image
from mmgrpo.data.prompt_media import LazyMedia
from mmgrpo.data.videos import FILES, open_video
from mmgrpo.errors import DataError
from mmgrpo.policy import Policy, SupportsPromptCheck
from mmgrpo.types import Prompt

logger = logging.getLogger(__name__)
NUM_NAMED = 20


@final
class UnreadableRows:
    """Skips the unreadable rows of a source, or lets their errors through."""

    def __init__(self, *, skip: bool) -> None:
        """Has read no row yet.

        Args:
            skip: whether to skip unreadable rows.
        """
        self._skip = skip
        self._faults: list[str] = []

    def read(self, read_row: Callable[[], Prompt]) -> Iterator[Prompt]:
        """Yields the prompt of a row; nothing for a row that is skipped.

        Args:
            read_row: reads the prompt.

        Yields:
            Prompt: the prompt.

        Raises:
            DataError: the row is unreadable, and such rows are not skipped.
        """
        try:
            prompt = read_row()
        except DataError as error:
            if not self._skip:
                raise
            self._faults.append(str(error))
        else:
            yield prompt

    def warn(self, source: str, num_read: int) -> None:
        """Logs a warning about the skipped rows."""
        warn_unreadable(source, self._faults, num_read)


def warn_unreadable(source: str, faults: Sequence[str], num_read: int) -> None:
    """Logs a warning about skipped rows, with their number and the first ones by name.

    Args:
        source: name of the source.
        faults: a message per skipped row.
        num_read: number of other rows.
    """
    if faults:
        num = len(faults)
        messages = "; ".join([*faults[:NUM_NAMED], *([f"and {num - NUM_NAMED} more"] if num > NUM_NAMED else [])])
        logger.warning("%s: %d of %d rows cannot be read and are left out: %s", source, num, num + num_read, messages)


def media_fault(prompt: Prompt) -> str | None:
    """Returns a message about the first of a prompt's media that cannot be decoded; None if all can.

    Images, frame lists and audio are decoded completely; of a video file the first frame and all timestamps.
    Remote media are not checked: the network may answer each process differently.
    """
    try:
        for images in (prompt.images, *(value for value in prompt.columns.values() if isinstance(value, LazyMedia))):
            for image in images.iter_local() if isinstance(images, LazyMedia) else images:
                load_image(image)
        for video in prompt.videos:
            if isinstance(video, FILES):
                open_video(video)
            else:
                for frame in video:
                    load_image(frame)
        for _ in prompt.audios.iter_local() if isinstance(prompt.audios, LazyMedia) else ():
            pass
    except DataError as error:
        return str(error)
    return None


def prompt_fault(prompt: Prompt, check: Callable[[Prompt], None]) -> str | None:
    """Returns why a prompt cannot be used; None if it can.

    Args:
        prompt: a prompt of the data.
        check: raises DataError for a prompt that the policy does not support.

    Returns:
        A message about its media, or about the prompt for this policy.
    """
    fault = media_fault(prompt)
    if fault is not None:
        return fault
    try:
        check(prompt)
    except DataError as error:
        return str(error)
    return None


def require_media(
    prompts: Sequence[Prompt], section: PromptsConfig | HeldOutPromptsConfig | None, check: Callable[[Prompt], None]
) -> None:
    """Checks the first prompt of each combination of kinds of media before a run, unless bad rows are skipped.

    Args:
        prompts: prompts of the run.
        section: their section of the configuration; None for prompts from Python.
        check: raises DataError for a prompt that the policy does not support, such as one with media it cannot read.

    Raises:
        DataError: as the check does.
    """
    parts = [] if section is None else [section, *section.sources]
    if any(part.on_error == "skip" for part in parts):
        return
    first: dict[tuple[bool, ...], Prompt] = {}
    for prompt in prompts:
        kinds = (len(prompt.images) > 0, len(prompt.videos) > 0, len(prompt.audios) > 0)
        first.setdefault(kinds, prompt)
    for kinds, prompt in first.items():
        if any(kinds):
            check(prompt)


def prompt_check(policy: Policy) -> Callable[[Prompt], None]:
    """Returns the policy's check of prompts; a function without effect if it has none."""
    return policy.check_prompt if isinstance(policy, SupportsPromptCheck) else lambda prompt: None


def usable_prompts(prompts: list[Prompt], source: str, check: Callable[[Prompt], None]) -> list[Prompt]:
    """Returns the prompts that can be used; counts and names the others in a warning.

    Raises DataError if none can be used.
    """
    faults = [prompt_fault(prompt, check) for prompt in prompts]
    usable = [prompt for prompt, fault in zip(prompts, faults, strict=True) if fault is None]
    warn_unreadable(source, [fault for fault in faults if fault is not None], len(usable))
    if not usable:
        raise DataError(f"{source}: no row can be used; the first: {faults[0]}")
    return usable
