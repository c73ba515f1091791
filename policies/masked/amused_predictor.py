"""``AmusedPipeline`` of diffusers: the codes of a picture, filled in behind a caption.

Axes: N rows, L codes of a picture, row by row, V codes there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Example, Prompt, Sample

from ..adapter_files import DiffusersFiles
from .codebook import NOISE, STEPS, Codebook
from .predictor import Condition, PredictorSpec
from .settings import MaskedSettings

CALL = ("height", "width", "micro_conditioning_aesthetic_score", "micro_conditioning_crop_coord")
MEMO = 1024
"""Captions that stay encoded."""


class AmusedPredictor:
    """The pipeline's transformer, called as the pipeline calls it."""

    def __init__(self, pipeline: Any, settings: MaskedSettings) -> None:
        """Takes the pipeline as it is; only its transformer is trained.

        Args:
            pipeline: an ``AmusedPipeline``.
            settings: how large its pictures are.

        Raises:
            ConfigError: an argument that the pipeline is not called with, or settings that are for texts.
        """
        if unknown := sorted(set(settings.pipeline) - set(CALL)):
            raise ConfigError(f"policy.pipeline takes {', '.join(CALL)}; got {', '.join(unknown)}")
        self.pipeline, self.given = pipeline, settings.pipeline
        transformer, scale = pipeline.transformer, pipeline.vae_scale_factor
        self._size = tuple(
            self.given.get(name) or transformer.config.sample_size * scale for name in ("height", "width")
        )
        self._shape = tuple(side // scale for side in self._size)
        self.codebook = Codebook(pipeline.vqvae, *self._shape)
        self.mask_id = pipeline.scheduler.config.mask_token_id
        self.facts = PredictorSpec(
            modules={"transformer": transformer},
            targets=[path for path, layer in transformer.named_modules() if type(layer) is nn.Linear],
            files=DiffusersFiles(pipeline),
            frozen=[pipeline.text_encoder, pipeline.vqvae],
            beside=None,
            length=self._shape[0] * self._shape[1],
            never=torch.tensor(sorted(settings.suppress), dtype=torch.long),
            num_steps=STEPS,
            schedule=pipeline.scheduler.config.masking_schedule,
            order_noise=NOISE,
        )
        self._encoded = lru_cache(MEMO)(self._encode)

    def condition(self, prompt: Prompt) -> Condition:
        """The caption and the negative one, encoded."""
        if prompt.images or prompt.videos or prompt.audios or prompt.prefix:
            raise DataError(f"AmusedPipeline is shown captions alone; {prompt.text!r:.60} brings more")
        pooled, states = self._encoded(prompt.text)
        without_pooled, without = self._encoded(prompt.negative or "")
        inputs = {"pooled": pooled, "states": states, "without_pooled": without_pooled, "without": without}
        return Condition(prompt=prompt, inputs=inputs, kind=states.shape[1:])

    def hidden(self, condition: Condition, share: float, generator: torch.Generator) -> Condition:
        """Never: captions are read by an encoder of their own."""
        raise ConfigError("policy.reading.prompt_share: a caption is not hidden in part; leave it out")

    def logits(
        self,
        modules: Mapping[str, nn.Module],
        conditions: Sequence[Condition],
        token_NL: Tensor,
        hidden_NL: Tensor,
        *,
        guidance_scale: float,
    ) -> Tensor:
        """As ``AmusedPipeline`` calls its transformer, without the caption first."""
        code_NL = token_NL.masked_fill(hidden_NL, self.mask_id).to(self._device)
        code_NHW = code_NL.reshape(len(code_NL), *self._shape)
        named = ["pooled", "states"]
        pooled, states = (torch.cat([one.inputs[name] for one in conditions]) for name in named)
        if guidance_scale != 1:
            other = (torch.cat([one.inputs[name] for one in conditions]) for name in ("without_pooled", "without"))
            pooled, states = (torch.cat(pair) for pair in zip(other, (pooled, states), strict=True))
            code_NHW = torch.cat([code_NHW, code_NHW])
        logits_NVHW = modules["transformer"](
            code_NHW,
            micro_conds=self._micro(states).expand(len(code_NHW), -1),
            pooled_text_emb=pooled,
            encoder_hidden_states=states,
        )
        if guidance_scale != 1:
            without_NVHW, with_NVHW = logits_NVHW.chunk(2)
            logits_NVHW = without_NVHW + guidance_scale * (with_NVHW - without_NVHW)
        return logits_NVHW.flatten(2).transpose(1, 2)

    def samples(self, bare: Sequence[Sample], token_NL: Tensor) -> list[Sample]:
        """The pictures."""
        images = self.codebook.pictures(token_NL)
        return [
            replace(one, image=image, tokens=token_L.tolist())
            for one, image, token_L in zip(bare, images, token_NL, strict=True)
        ]

    def until_end(self, token_NL: Tensor) -> Tensor:
        """All: a picture has no end."""
        return torch.ones_like(token_NL, dtype=torch.bool)

    def target(self, example: Example) -> Tensor:
        """The codes of the example's picture."""
        if example.image is None:
            raise DataError("what draws pictures is taught from, and reads, samples with an image")
        return self.codebook.of(example.image)

    @property
    def _device(self) -> torch.device:
        return self.pipeline.transformer.device

    @torch.no_grad()
    def _encode(self, text: str) -> tuple[Tensor, Tensor]:
        tokenizer = self.pipeline.tokenizer
        ids = tokenizer(
            [text], return_tensors="pt", padding="max_length", truncation=True, max_length=tokenizer.model_max_length
        ).input_ids
        found = self.pipeline.text_encoder(ids.to(self._device), return_dict=True, output_hidden_states=True)
        return found.text_embeds, found.hidden_states[-2]

    def _micro(self, states: Tensor) -> Tensor:
        """Width before height, as the pipeline has it."""
        crop = self.given.get("micro_conditioning_crop_coord", (0, 0))
        score = self.given.get("micro_conditioning_aesthetic_score", 6)
        height, width = self._size
        return torch.tensor([[width, height, *crop, score]], device=states.device, dtype=states.dtype)
