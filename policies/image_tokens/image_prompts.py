"""Encoding of prompts of images: the conditional tokens, and the unconditional ones for guidance.

Axes: P tokens of a prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Prompt

from ..chat_template import render, require_no_arguments, require_room
from .grids import Grid
from .settings import ImageTokensSettings

DRAWING: Mapping[str, Any] = {
    "generation_mode": "image",
    "return_for_image_generation": True,
    "return_for_text_completion": True,
}
"""Arguments for processors with image generation, each if the processor has a default for it."""

REMEMBERED = 65536
"""Maximum number of cached prompts."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedImagePrompt:
    """Input tokens of a prompt.

    Attributes:
        prompt: the prompt; stored so that its ``id`` stays unique.
        token_P: its token ids, up to the first code.
        blank_P: token ids of the unconditional side, up to the first code.
    """

    prompt: Prompt
    token_P: Tensor
    blank_P: Tensor

    @property
    def dropped(self) -> EncodedImagePrompt:
        """The prompt with the unconditional tokens on both sides."""
        return EncodedImagePrompt(self.prompt, self.blank_P, self.blank_P)

    def sides(self, num: int) -> list[Tensor]:
        """The token ids of the first ``num`` sides."""
        return [self.token_P, self.blank_P][:num]


class ImagePromptEncoder:
    """Encodes prompts with the chat template, if there is one, followed by the start of an image."""

    def __init__(self, model: PreTrainedModel, processor: Any, settings: ImageTokensSettings, grid: Grid) -> None:
        """Inspects the processor.

        Args:
            model: model whose generation config may name the tokens that the unconditional side keeps.
            processor: an ``AutoProcessor`` or ``AutoTokenizer`` of transformers.
            settings: settings of the policy.
            grid: grid of the codes.

        Raises:
            ConfigError: ``policy.chat`` is true, and there is no chat template.
        """
        self.processor = processor
        self._model, self._num_codes = model, grid.num_codes
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.settings = settings
        self._reads_parts = self.tokenizer is not processor
        has_template = bool(getattr(processor, "chat_template", None) or getattr(self.tokenizer, "chat_template", None))
        self._uses_template = has_template if settings.chat is None else settings.chat
        if self._uses_template and not has_template:
            raise ConfigError(f"policy.chat is true, but {type(processor).__name__} has no chat template: set it false")
        self._options = {name: value for name, value in DRAWING.items() if hasattr(processor, name)}
        if "return_for_image_generation" in self._options:
            area = grid.num_codes * processor.downsample_ratio**2
            self._options |= {"ratio": f"{grid.width}:{grid.height}", "image_area": area}
        self._begin = settings.begin or getattr(processor, "image_start_token", None) or ""
        self._begins_itself = settings.begin is None and "return_for_text_completion" not in self._options
        self._special_ids = _special_ids(model, self.tokenizer) if "generation_mode" in self._options else None
        self._cache: OrderedDict[int, EncodedImagePrompt] = OrderedDict()

    def __call__(self, prompt: Prompt) -> EncodedImagePrompt:
        """The prompt's tokens, on the CPU.

        The unconditional side is the negative prompt; without one, the prompt with padding in place of its text if
        the model was trained so, else the empty text.

        Raises: DataError for a prompt with images, for several turns without a template, and for an empty prefix of the
        first code.
        """
        if id(prompt) not in self._cache:
            self._cache[id(prompt)] = self._encoded(prompt)
            if len(self._cache) > REMEMBERED:
                self._cache.popitem(last=False)
        return self._cache[id(prompt)]

    def _encoded(self, prompt: Prompt) -> EncodedImagePrompt:
        if prompt.images or prompt.videos or prompt.audios or prompt.prefix is not None:
            raise DataError(
                f"the prompt {prompt.text!r:.60} has images, videos, audio or a prefix of its answer: image tokens "
                "support text prompts only, so remove them from the row"
            )
        token_P = self._ids(prompt)
        require_room(self._model, prompt, len(token_P), length=self._num_codes)
        if prompt.negative is None and self._special_ids is not None:
            special_ids, pad_id = self._special_ids
            blank_P = token_P.where(torch.isin(token_P, special_ids), pad_id)
        else:
            blank_P = self._ids(Prompt(prompt.negative or ""))
        if min(len(token_P), len(blank_P)) == 0:
            raise DataError(
                f"there is no token before the first code of {prompt.text!r:.60}: set policy.begin to the text that "
                "starts an image"
            )
        return EncodedImagePrompt(prompt, token_P, blank_P)

    def _ids(self, prompt: Prompt) -> Tensor:
        text = self._rendered(prompt)
        if not self._begins_itself:
            text += self._begin
        if not self._reads_parts:
            return torch.tensor(self.tokenizer(text)["input_ids"], dtype=torch.long)
        options = self._options | {"add_special_tokens": not self._uses_template}
        return self.processor(text=[text], return_tensors="pt", **options)["input_ids"][0]

    def _rendered(self, prompt: Prompt) -> str:
        if not self._uses_template:
            if prompt.messages is not None and len(prompt.messages) > 1:
                raise DataError(
                    f"the prompt {prompt.text!r:.60} has {len(prompt.messages)} turns, which only a chat template can "
                    "put together; give prompts of one turn"
                )
            require_no_arguments(prompt)
            return prompt.text
        messages = prompt.messages or [{"role": "user", "content": prompt.text}]
        turns = [self._turn(turn) for turn in messages]
        return render(self.processor, turns, prompt, add_generation_prompt=True, **self.settings.template)

    def _turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        content = turn["content"]
        if self._reads_parts and isinstance(content, str):
            content = [{"type": "text", "text": content}]
        return {**turn, "content": content}


def _special_ids(model: PreTrainedModel, tokenizer: Any) -> tuple[Tensor, int]:
    """The tokens that a padded unconditional side keeps, and the padding token."""
    config: Any = model.generation_config
    begin = (config.generation_kwargs or {}).get("boi_token_id") if hasattr(config, "generation_kwargs") else None
    begin = tokenizer.boi_token_id if begin is None else begin
    first, pad = (
        next(
            (
                candidate
                for candidate in (getattr(config, name, None), getattr(tokenizer, name, None))
                if candidate is not None
            ),
            None,
        )
        for name in ("bos_token_id", "pad_token_id")
    )
    if pad is None:
        raise ConfigError("guidance pads the prompt, and neither generation config nor tokenizer have a pad_token_id")
    return torch.tensor([candidate for candidate in (begin, first) if candidate is not None]), int(pad)
