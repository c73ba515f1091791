"""Every tiny pipeline by name, with the arguments that make a call of it small."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from PIL import Image
from torch import nn

from tests.tiny import flux, image_transformers, stable_diffusion, videos

SEED = 0
GAIN = 2.0  # on a denoiser's weight matrices: with torch's own scale the prompt hardly reaches the pixels
DENOISERS = ("transformer", "unet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """A pipeline that can be built and called in well under a second.

    Attributes:
        name: its name in ``PIPELINES``.
        build: makes it: float32, eval mode, the same weights each time, the caller's random state untouched.
        call: arguments that make a call small and valid; prompts, generators and ``output_type`` are the caller's.
        cfg: further arguments that switch guidance on.
        no_cfg: further arguments that switch it off.
        needs_negative: guidance takes effect only with ``negative_prompt``, a list as long as the prompts.
        per_row: arguments given as a list with one entry a prompt; here the entry that every row may share.
        video: the call returns ``frames`` (a list of PIL frames per row under ``output_type="pil"``), not ``images``.
    """

    name: str
    build: Callable[[], DiffusionPipeline]
    call: Mapping[str, Any]
    cfg: Mapping[str, Any]
    no_cfg: Mapping[str, Any]
    needs_negative: bool = False
    per_row: Mapping[str, Any] = field(default_factory=dict)
    video: bool = False

    def arguments(self, prompts: Sequence[str], *, guided: bool) -> dict[str, Any]:
        """The keyword arguments of one call for these prompts, without the generators and the output type."""
        rows: dict[str, Any] = {key: [value] * len(prompts) for key, value in self.per_row.items()}
        if guided and self.needs_negative:
            rows["negative_prompt"] = ["blue"] * len(prompts)
        return {"prompt": list(prompts), **rows, **self.call, **(self.cfg if guided else self.no_cfg)}


def build_seeded(make: Callable[[], DiffusionPipeline]) -> DiffusionPipeline:
    """The pipeline with random weights of a fixed seed, ready to sample and to train.

    Parameters of the denoiser that their class sets to zero are random too, so that no gradient is zero by
    construction; its weight matrices are scaled up by ``GAIN``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        pipeline = make()
        for name in DENOISERS:
            _wake(getattr(pipeline, name, None))
    for component in pipeline.components.values():
        if isinstance(component, nn.Module):
            component.float().eval()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@torch.no_grad()
def _wake(denoiser: nn.Module | None) -> None:
    for parameter in denoiser.parameters() if denoiser is not None else ():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.2)
        elif parameter.ndim > 1:
            parameter.mul_(GAIN)


def _tiny(name: str, make: Callable[[], DiffusionPipeline], **facts: Any) -> Tiny:
    return Tiny(name=name, build=partial(build_seeded, make), **facts)


def _picture() -> Image.Image:
    gradient = [(16 * x, 16 * y, 128) for y in range(16) for x in range(16)]
    image = Image.new("RGB", (16, 16))
    image.putdata(gradient)
    return image


def _lower_half() -> Image.Image:
    mask = Image.new("L", (16, 16))
    mask.paste(255, (0, 8, 16, 16))
    return mask


SQUARE = {"height": 16, "width": 16, "num_inference_steps": 4}
LARGE_SQUARE = {"height": 32, "width": 32, "num_inference_steps": 4}  # for 4 pixels a latent
CLIP = {"height": 32, "width": 32, "num_frames": 5, "num_inference_steps": 4}
GUIDED = {"cfg": {"guidance_scale": 4.0}, "no_cfg": {"guidance_scale": 1.0}}
TRUE_GUIDED = {"cfg": {"true_cfg_scale": 4.0}, "no_cfg": {"true_cfg_scale": 1.0}, "needs_negative": True}

PIPELINES: dict[str, Tiny] = {
    tiny.name: tiny
    for tiny in (
        _tiny("sd15", stable_diffusion.sd15, call=SQUARE, **GUIDED),
        _tiny("sd15-v", stable_diffusion.sd15_v, call=SQUARE, **GUIDED),
        _tiny("sd15-dpm", stable_diffusion.sd15_dpm, call=SQUARE, **GUIDED),
        _tiny("sd15-euler-a", stable_diffusion.sd15_euler_ancestral, call=SQUARE, **GUIDED),
        _tiny("sd15-lcm", stable_diffusion.sd15_lcm, call=SQUARE, **GUIDED),
        _tiny(
            "sd15-inpaint",
            stable_diffusion.sd15_inpaint,
            call=SQUARE,
            per_row={"image": _picture(), "mask_image": _lower_half()},
            **GUIDED,
        ),
        _tiny("sdxl", stable_diffusion.sdxl, call=SQUARE, **GUIDED),
        _tiny("sd3", image_transformers.sd3, call=SQUARE | {"max_sequence_length": 64}, **GUIDED),
        _tiny("flux", flux.flux, call=SQUARE | {"max_sequence_length": 64}, **TRUE_GUIDED),
        _tiny(
            "flux-kontext",
            flux.flux_kontext,
            call=SQUARE | {"max_sequence_length": 64, "max_area": 16 * 16, "_auto_resize": False},
            per_row={"image": _picture()},
            **TRUE_GUIDED,
        ),
        _tiny(
            "flux2",
            flux.flux2,
            call=SQUARE | {"max_sequence_length": 64, "text_encoder_out_layers": (1, 2, 3)},
            **GUIDED,
        ),
        _tiny(
            "flux2-klein",
            flux.flux2_klein,
            call=SQUARE | {"max_sequence_length": 64, "text_encoder_out_layers": (1, 2, 3)},
            **GUIDED,
        ),
        _tiny("qwen-image", image_transformers.qwen_image, call=LARGE_SQUARE, **TRUE_GUIDED),
        _tiny(
            "sana",
            image_transformers.sana,
            call=LARGE_SQUARE | {"max_sequence_length": 64, "use_resolution_binning": False},
            **GUIDED,
        ),
        _tiny(
            "z-image",
            image_transformers.z_image,
            call=SQUARE | {"max_sequence_length": 64},
            cfg={"guidance_scale": 4.0},
            no_cfg={"guidance_scale": 0.0},
        ),
        _tiny(
            "lumina2",
            image_transformers.lumina2,
            call=SQUARE | {"height": 64, "width": 64, "max_sequence_length": 96},
            **GUIDED,
        ),
        _tiny(
            "pixart-sigma",
            image_transformers.pixart_sigma,
            call=SQUARE | {"max_sequence_length": 64, "use_resolution_binning": False, "clean_caption": False},
            **GUIDED,
        ),
        _tiny("wan", videos.wan, call=CLIP | {"max_sequence_length": 64}, video=True, **GUIDED),
        _tiny(
            "cogvideox",
            videos.cogvideox,
            call=CLIP | {"height": 16, "width": 16, "max_sequence_length": videos.COGVIDEOX_TEXT_LENGTH},
            video=True,
            **GUIDED,
        ),
        _tiny("ltx", videos.ltx, call=CLIP | {"max_sequence_length": 64}, video=True, **GUIDED),
    )
}
