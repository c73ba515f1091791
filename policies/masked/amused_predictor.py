"""``AmusedPipeline`` of diffusers: an image's codes, predicted from a caption.

Axes: N rows, L codes of an image, row by row, V codes in the codebook.
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

from ..adapter_formats import DiffusersFiles
from .codebook import NOISE, STEPS, Codebook
from .predictor import Condition, PredictorSpec
from .settings import MaskedSettings

CALL = ("height", "width", "micro_conditioning_aesthetic_score", "micro_conditioning_crop_coord")
CAPTION_CACHE_SIZE = 1024
"""Cached encoded captions."""


class AmusedPredictor:
    """The pipeline's transformer, called like in the pipeline."""

    def __init__(self, pipeline: Any, settings: MaskedSettings) -> None:
        """Wraps the pipeline; only its transformer is trained.

        Args:
            pipeline: an ``AmusedPipeline``.
            settings: the image size.

        Raises:
            ConfigError: an argument that the pipeline does not take, or settings for texts.
        """
        if unknown := sorted(set(settings.pipeline) - set(CALL)):
            raise ConfigError(f"policy.pipeline takes {', '.join(CALL)}; got {', '.join(unknown)}")
        self.pipeline, self.options = pipeline, settings.pipeline
        transformer, scale = pipeline.transformer, pipeline.vae_scale_factor
        self._size = tuple(
            self.options.get(name) or transformer.config.sample_size * scale for name in ("height", "width")
        )
        self._shape = tuple(side // scale for side in self._size)
        self.codebook = Codebook(pipeline.vqvae, *self._shape)
        self.mask_id = pipeline.scheduler.config.mask_token_id
        self.spec = PredictorSpec(
            modules={"transformer": transformer},
            targets=[path for path, layer in transformer.named_modules() if type(layer) is nn.Linear],
            files=DiffusersFiles(pipeline),
            frozen=[pipeline.text_encoder, pipeline.vqvae],
            extra=None,
            length=self._shape[0] * self._shape[1],
            suppressed_ids=torch.tensor(sorted(settings.suppress), dtype=torch.long),
            num_steps=STEPS,
            schedule=pipeline.scheduler.config.masking_schedule,
            order_noise=NOISE,
        )
        self._encoded = lru_cache(CAPTION_CACHE_SIZE)(self._encode)

    def condition(self, prompt: Prompt) -> Condition:
        """The caption and the negative one, encoded."""
        if prompt.images or prompt.videos or prompt.audios or prompt.prefix:
            raise DataError(
                f"AmusedPipeline takes captions only; the prompt {prompt.text!r:.60} has media or a prefix, remove them"
            )
        pooled, states = self._encoded(prompt.text)
        without_pooled, without = self._encoded(prompt.negative or "")
        inputs = {"pooled": pooled, "states": states, "without_pooled": without_pooled, "without": without}
        return Condition(prompt=prompt, inputs=inputs, kind=states.shape[1:])

    def mask_prompt(self, condition: Condition, share: float, generator: torch.Generator) -> Condition:
        """Raises ConfigError: captions have a separate encoder and are never masked."""
        raise ConfigError("policy.reading.prompt_share does not support captions; remove it")

    def logits(
        self,
        modules: Mapping[str, nn.Module],
        conditions: Sequence[Condition],
        token_NL: Tensor,
        masked_NL: Tensor,
        *,
        guidance_scale: float,
    ) -> Tensor:
        """Calls the transformer like ``AmusedPipeline``, the rows without caption first."""
        code_NL = token_NL.masked_fill(masked_NL, self.mask_id).to(self._device)
        code_NHW = code_NL.reshape(len(code_NL), *self._shape)
        names = ["pooled", "states"]
        pooled, states = (torch.cat([condition.inputs[name] for condition in conditions]) for name in names)
        if guidance_scale != 1:
            names = ("without_pooled", "without")
            other = (torch.cat([condition.inputs[name] for condition in conditions]) for name in names)
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

    def samples(self, samples: Sequence[Sample], token_NL: Tensor) -> list[Sample]:
        """The samples with their images."""
        images = self.codebook.decode(token_NL)
        return [
            replace(sample, image=image, tokens=token_L.tolist())
            for sample, image, token_L in zip(samples, images, token_NL, strict=True)
        ]

    def is_answer(self, token_NL: Tensor) -> Tensor:
        """All True: an image has no end token."""
        return torch.ones_like(token_NL, dtype=torch.bool)

    def target(self, example: Example) -> Tensor:
        """The codes of the example's image."""
        if example.image is None:
            raise DataError("examples and remasked samples of an image model need an image")
        return self.codebook.encode(example.image)

    @property
    def _device(self) -> torch.device:
        return self.pipeline.transformer.device

    @torch.no_grad()
    def _encode(self, text: str) -> tuple[Tensor, Tensor]:
        tokenizer = self.pipeline.tokenizer
        ids = tokenizer(
            [text], return_tensors="pt", padding="max_length", truncation=True, max_length=tokenizer.model_max_length
        ).input_ids
        output = self.pipeline.text_encoder(ids.to(self._device), return_dict=True, output_hidden_states=True)
        return output.text_embeds, output.hidden_states[-2]

    def _micro(self, states: Tensor) -> Tensor:
        """The micro-conditioning, width before height like in the pipeline."""
        crop = self.options.get("micro_conditioning_crop_coord", (0, 0))
        score = self.options.get("micro_conditioning_aesthetic_score", 6)
        height, width = self._size
        return torch.tensor([[width, height, *crop, score]], device=states.device, dtype=states.dtype)
