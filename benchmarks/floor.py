"""The floor: the passes of an iteration by direct calls of the transformer, every tensor made beforehand."""

from __future__ import annotations

from typing import Any

import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from torch import Tensor

from benchmarks.iteration import Learner
from benchmarks.model import LATENT_SIZE, TEXT_TOKENS
from benchmarks.settings import Setting, passes_of
from tests.tiny.autoencoders import LATENT_CHANNELS
from tests.tiny.text_encoders import WIDTH


class Floor:
    """Runs the passes of an iteration on the learner's own model, and nothing else.

    Attributes:
        passes: what is run.
    """

    def __init__(self, learner: Learner, setting: Setting) -> None:
        """Makes every tensor.

        Args:
            learner: whose model is run.
            setting: the iteration that the passes are of.
        """
        self.passes = passes_of(setting)
        assert isinstance(learner.policy, DenoisingPolicy)
        self._learner, self._pipeline = learner, learner.policy.pipeline
        self._device, self._dtype = torch.device(setting.device), setting.torch_dtype
        self._autocast = not setting.lora and self._dtype != torch.float32
        sizes = {*self.passes.forward, *self.passes.backward}
        self._inputs = {size: self._prepared(size * setting.branches) for size in sizes}
        self._latents = {size: self._latent(size) for size in self.passes.decode}

    @torch.no_grad()
    def draw(self) -> None:
        """The rollout's forwards, and the decoding."""
        for size in self.passes.forward:
            self._call(self._inputs[size])
        self.decode()

    @torch.no_grad()
    def decode(self) -> None:
        """The autoencoder alone."""
        for size in self.passes.decode:
            self._pipeline.vae.decode(self._latents[size], return_dict=False)

    def learn(self) -> None:
        """The update's forwards and backwards, and the optimizer's step."""
        for size in self.passes.backward:
            inputs = self._inputs[size]
            self._call(inputs).backward(inputs["hidden_states"])
        self._learner.apply_gradient()

    def _call(self, inputs: dict[str, Any]) -> Tensor:
        with torch.autocast(self._device.type, dtype=self._dtype, enabled=self._autocast):
            return self._pipeline.transformer(**inputs, return_dict=False)[0]

    def _prepared(self, rows: int) -> dict[str, Any]:
        return {
            "hidden_states": self._latent(rows),
            "timestep": torch.full((rows,), 500.0, device=self._device),
            "encoder_hidden_states": self._normal(rows, TEXT_TOKENS, 2 * WIDTH),
            "pooled_projections": self._normal(rows, 2 * WIDTH),
        }

    def _latent(self, rows: int) -> Tensor:
        return self._normal(rows, LATENT_CHANNELS, LATENT_SIZE, LATENT_SIZE)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self._device, self._dtype)
