"""TimeSearch-R, arXiv:2511.05489.

The policy answers once more from the frames alone that a sample has retrieved.
"""

from __future__ import annotations

from dataclasses import replace

from mmgrpo.data.history import NOTHING, History, prompt_template
from mmgrpo.data.prompt_templates import PROMPT_TEMPLATES, fill_template, with_text
from mmgrpo.types import Prompt


@PROMPT_TEMPLATES.register
@prompt_template()
def retrieved_media(prompt: Prompt, member: int, history: History = NOTHING, *, text: str) -> Prompt | None:
    """A text with the images and videos that the environment showed to a sample, in place of those of the prompt.

    ``{prompt}`` and ``{COLUMN}`` are replaced as in ``template``. It does not apply to a sample to which nothing was
    shown.

    Source: TimeSearch-R, arXiv:2511.05489, completeness self-verification, and its code (Time-Search/TimeSearch-R,
        time_r1/trainer/grpo_trainer_env.py, ``get_visual_trace``).
    """
    del member
    if not history.samples:
        return None
    replies = [reply for reply in history.samples[0].turn_replies if reply is not None and not reply.ends]
    images = [image for reply in replies for image in reply.images]
    videos = [video for reply in replies for video in reply.videos]
    if not images and not videos:
        return None
    filled = fill_template(prompt, text, {})
    without = replace(prompt, messages=None, images=images, videos=videos)
    return with_text(without, filled)
