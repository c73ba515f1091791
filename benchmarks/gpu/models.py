"""Denoisers and language models of published shapes with random weights, made on the device in bfloat16.

Text encoders have the published width but one or two layers and the tests' vocabulary: a prompt is encoded once and
its encoding cached, so their size costs a run memory alone. ``tiny`` are the tests' pipelines of the same classes.
"""

# diffusers exports lazily and annotates its components more narrowly than it takes them.

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import diffusers
import torch
import transformers
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    StableDiffusion3Pipeline,
    UniPCMultistepScheduler,
    WanPipeline,
)
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.denoising_outline import cast_as_loaded
from mmgrpo.policies.shapes import model_configs
from torch import nn

from tests.policies.tiny_policies import pipeline_of
from tests.tiny.pipelines import PIPELINES as TINY
from tests.tiny.tokenizers import clip_tokenizer, t5_tokenizer

LORA = {"rank": 32, "alpha": 64.0}
DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class Denoiser:
    """A pipeline and a way to run it.

    Attributes:
        model: hub id, of which mmgrpo ships the shapes.
        kind: the pipeline's class.
        scheduler: makes its scheduler.
        tiny: name of the tests' pipeline of the class.
        call: arguments of the pipeline's call.
        group: samples of the one prompt.
        batch: rows of a pass of the update.
        rollout_batch: rows of a pass of the rollout.
        checkpointing: gradient checkpointing.
        lora: whether adapters are trained; else every weight, in float32 under autocast.
        nf4: whether the denoiser's frozen linear layers are those of bitsandbytes in 4 bit.
        more: further settings of the policy.
    """

    model: str
    kind: Any
    scheduler: Callable[[], Any]
    tiny: str
    call: Mapping[str, Any]
    group: int
    batch: int
    rollout_batch: int
    checkpointing: bool = False
    lora: bool = True
    nf4: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)

    def policy(self, device: str, *, tiny: bool) -> DenoisingPolicy:
        """The policy, with the same random weights each time."""
        pipeline = self.pipeline(device, tiny=tiny)
        if self.nf4:
            to_nf4(pipeline.transformer)
        torch.manual_seed(0)
        return DenoisingPolicy(
            pipeline,
            {
                "call": self.call_of(tiny=tiny),
                "lora": LORA if self.lora else None,
                "rollout_batch": self.rollout_batch,
                "update_batch": self.batch,
                "gradient_checkpointing": self.checkpointing,
                **self.more,
            },
        )

    def call_of(self, *, tiny: bool) -> dict[str, Any]:
        """The arguments of the pipeline's call."""
        small = {name: value for name, value in TINY[self.tiny].call.items() if name != "num_inference_steps"}
        return {**self.call, **(small if tiny else {})}

    def pipeline(self, device: str, *, tiny: bool) -> Any:
        """The pipeline, with the same random weights each time."""
        torch.manual_seed(0)
        return pipeline_of(self.tiny).to(device, DTYPE) if tiny else self._published(device)

    def _published(self, device: str) -> Any:
        parts: dict[str, Any] = {}
        with torch.device(device):
            for name, (library, kind, config) in model_configs(self.model).components.items():
                if library == "transformers":
                    parts[name], parts[name.replace("text_encoder", "tokenizer")] = _text_encoder(kind, config)
                else:
                    parts[name] = getattr(diffusers, kind).from_config(dict(config))
        modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
        for module in modules.values():
            cast_as_loaded(module, DTYPE).eval()
        return self.kind(scheduler=self.scheduler(), **parts)


def to_nf4(module: nn.Module) -> None:
    """Replaces the linear layers with those of bitsandbytes, as the loaders of transformers and diffusers do."""
    layers: Any = importlib.import_module("bitsandbytes.nn")

    for path, layer in list(module.named_modules()):
        if type(layer) is not nn.Linear:
            continue
        weight, bias = layer.weight, layer.bias
        quantized = layers.Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=bias is not None,
            compute_dtype=weight.dtype,
            quant_type="nf4",
            device="meta",
        )
        quantized.weight = layers.Params4bit(weight.data, requires_grad=False, quant_type="nf4", module=quantized)
        quantized.bias = bias
        module.set_submodule(path, quantized.to(weight.device))


def _text_encoder(kind: str, config: Mapping[str, Any]) -> tuple[nn.Module, Any]:
    tokenizer = clip_tokenizer() if kind.startswith("CLIP") else t5_tokenizer()
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    small = {"num_hidden_layers": 2, **ids} if kind.startswith("CLIP") else {"num_layers": 1}
    module_class = getattr(transformers, kind)
    return module_class(module_class.config_class(**{**config, **small, "vocab_size": len(tokenizer)})), tokenizer


def _sd3_scheduler() -> Any:
    return FlowMatchEulerDiscreteScheduler(shift=3.0)


def _flux_scheduler() -> Any:
    return FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True)


def _wan_scheduler() -> Any:
    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)


def sd3(side: int, *, steps: int = 5, **others: Any) -> Denoiser:
    """Stable Diffusion 3.5 Medium without guidance, 333 text tokens, at a side in pixels."""
    size = {"height": side, "width": side, "num_inference_steps": steps}
    return replace(
        Denoiser(
            model="stabilityai/stable-diffusion-3.5-medium",
            kind=StableDiffusion3Pipeline,
            scheduler=_sd3_scheduler,
            tiny="sd3",
            call={**size, "guidance_scale": 1.0, "max_sequence_length": 256},
            group=8,
            batch=8 if side <= 512 else 2,
            rollout_batch=8,
        ),
        **others,
    )


def flux(side: int, *, steps: int = 4, **others: Any) -> Denoiser:
    """FLUX.1-dev, 512 text tokens, at a side in pixels; with checkpointing."""
    size = {"height": side, "width": side, "num_inference_steps": steps}
    return replace(
        Denoiser(
            model="black-forest-labs/FLUX.1-dev",
            kind=FluxPipeline,
            scheduler=_flux_scheduler,
            tiny="flux",
            call={**size, "guidance_scale": 3.5, "max_sequence_length": 512},
            group=4,
            batch=4 if side <= 512 else 2,
            rollout_batch=4,
            checkpointing=True,
        ),
        **others,
    )


def wan(*, steps: int = 4, **others: Any) -> Denoiser:
    """Wan 2.1 1.3B without guidance, 33 frames of 832 x 480, 512 text tokens; with checkpointing."""
    size = {"height": 480, "width": 832, "num_frames": 33, "num_inference_steps": steps}
    return replace(
        Denoiser(
            model="Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
            kind=WanPipeline,
            scheduler=_wan_scheduler,
            tiny="wan",
            call={**size, "guidance_scale": 1.0, "max_sequence_length": 512},
            group=2,
            batch=1,
            rollout_batch=2,
            checkpointing=True,
        ),
        **others,
    )
