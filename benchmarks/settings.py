"""Settings of an overhead measurement, and the passes that every implementation needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from mmgrpo.policies.model_source import DTYPES

from benchmarks.model import PIXELS, T5_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One training iteration: a group of samples of one prompt, every step but the last stochastic and trained on.

    Attributes:
        steps: denoising steps.
        group: samples.
        same_initial_noise: whether the group starts from one noise.
        batch: rows of a pipeline call.
        guidance: guidance scale; above 1 each row goes through the denoiser twice.
        lora: rank of the adapters; 0 trains every weight.
        device: where.
        dtype: of the loaded weights; trained weights are float32.
    """

    steps: int
    group: int
    same_initial_noise: bool = False
    batch: int = 8
    guidance: float = 1.0
    lora: int = 0
    device: str = "cpu"
    dtype: str = "float32"

    def sharing(self, same_initial_noise: bool) -> Setting:
        """The same with the noise shared or not."""
        return replace(self, same_initial_noise=same_initial_noise)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return DTYPES[self.dtype]

    @property
    def branches(self) -> int:
        """Denoiser rows of a sample: two with guidance."""
        return 2 if self.guidance > 1 else 1

    @property
    def policy(self) -> dict[str, object]:
        """The settings of the denoising policy."""
        call = {
            "height": PIXELS,
            "width": PIXELS,
            "num_inference_steps": self.steps,
            "guidance_scale": self.guidance,
            "max_sequence_length": T5_TOKENS,
        }
        lora = {"rank": self.lora, "alpha": 2.0 * self.lora} if self.lora else None
        return {"call": call, "lora": lora, "rollout_batch": self.batch, "update_batch": self.batch}


@dataclass(frozen=True, slots=True)
class Passes:
    """The denoiser passes of an iteration, each given by its number of samples.

    Attributes:
        forward: of the rollout, without grad.
        backward: of the update, forward and backward.
        decode: batches of finished latents.
        rollout_calls: pipeline calls that the forwards are spread over.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    decode: tuple[int, ...]
    rollout_calls: int


def passes_of(setting: Setting) -> Passes:
    """Counts them: with shared noise the first step is one row, in the rollout and in the update."""
    chunks = _chunks(setting.group, setting.batch)
    if not setting.same_initial_noise:
        return Passes(chunks * setting.steps, chunks * (setting.steps - 1), chunks, len(chunks))
    return Passes((1, *chunks * (setting.steps - 1)), (1, *chunks * (setting.steps - 2)), chunks, len(chunks) + 1)


def _chunks(rows: int, size: int) -> tuple[int, ...]:
    full, rest = divmod(rows, size)
    return (size,) * full + ((rest,) if rest else ())
