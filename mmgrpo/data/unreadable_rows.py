"""Rows that cannot be read: an error that names the first, or, where that is asked for, counted, named and left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import final

from mmgrpo.config import PromptsConfig
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
    """What is done about the rows of a source that cannot be read."""

    def __init__(self, *, skip: bool) -> None:
        """Nothing was read yet.

        Args:
            skip: whether they are left out.
        """
        self._skip = skip
        self._said: list[str] = []

    def read(self, find: Callable[[], Prompt]) -> Iterator[Prompt]:
        """The prompt of a row, or nothing where it is left out.

        Args:
            find: reads it.

        Yields:
            Prompt: the prompt.

        Raises:
            DataError: it cannot be read, and such rows are not to be left out.
        """
        try:
            found = find()
        except DataError as error:
            if not self._skip:
                raise
            self._said.append(str(error))
        else:
            yield found

    def tell(self, source: str, num_read: int) -> None:
        """Warns of the rows that were left out."""
        tell(source, self._said, num_read)


def tell(source: str, faults: Sequence[str], num_read: int) -> None:
    """Warns of rows that are left out, with their number and the first of them by name.

    Args:
        source: where they are.
        faults: what is wrong with each, with its name.
        num_read: how many others there are.
    """
    if faults:
        num = len(faults)
        named = "; ".join([*faults[:NUM_NAMED], *([f"and {num - NUM_NAMED} more"] if num > NUM_NAMED else [])])
        logger.warning("%s: %d of %d rows cannot be read and are left out: %s", source, num, num + num_read, named)


def media_fault(prompt: Prompt) -> str | None:
    """What is wrong with the first of a prompt's media that cannot be decoded; None if nothing is.

    Images, frames of lists and sounds are decoded whole; of a video file the first frame, and the times of the others.

    Media that lie elsewhere are not looked at: what the network has may differ from process to process.
    """
    try:
        for images in (prompt.images, *(value for value in prompt.columns.values() if isinstance(value, LazyMedia))):
            for image in images.here() if isinstance(images, LazyMedia) else images:
                load_image(image)
        for video in prompt.videos:
            if isinstance(video, FILES):
                open_video(video)
            else:
                for frame in video:
                    load_image(frame)
        for _ in prompt.audios.here() if isinstance(prompt.audios, LazyMedia) else ():
            pass
    except DataError as error:
        return str(error)
    return None


def prompt_fault(prompt: Prompt, check: Callable[[Prompt], None]) -> str | None:
    """Why a prompt cannot be used; None if it can.

    Args:
        prompt: of the data.
        check: raises DataError for a prompt that the policy cannot take.

    Returns:
        What is wrong with its media, or with the prompt for this policy.
    """
    fault = media_fault(prompt)
    if fault is not None:
        return fault
    try:
        check(prompt)
    except DataError as error:
        return str(error)
    return None


def require_media(prompts: Sequence[Prompt], section: PromptsConfig | None, check: Callable[[Prompt], None]) -> None:
    """Checks the first prompt of each combination of kinds of media before a run, unless bad rows are skipped.

    Args:
        prompts: of the run.
        section: of the configuration that they are from; None for prompts in Python.
        check: raises DataError for a prompt that the policy cannot take, such as one whose media it does not see.

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
    """The check of prompts that a policy makes; of one that takes any, none."""
    return policy.check_prompt if isinstance(policy, SupportsPromptCheck) else lambda prompt: None


def usable_prompts(prompts: list[Prompt], source: str, check: Callable[[Prompt], None]) -> list[Prompt]:
    """Those that can be used, by their media and by the policy; the others are counted and named.

    Raises DataError if there are none.
    """
    faults = [prompt_fault(prompt, check) for prompt in prompts]
    kept = [prompt for prompt, fault in zip(prompts, faults, strict=True) if fault is None]
    tell(source, [fault for fault in faults if fault is not None], len(kept))
    if not kept:
        raise DataError(f"{source}: no row can be used; the first: {faults[0]}")
    return kept
