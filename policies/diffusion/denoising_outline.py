"""A pipeline outline for memory and time estimates: its components on the meta device, and calls of its denoiser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import diffusers
import torch
import transformers
from torch import Tensor, nn

from mmgrpo.errors import ConfigError
from mmgrpo.outline import Outline, Pass

from ..adapter_formats import DiffusersFiles
from ..model_source import DTYPES, call_builder, require_model
from ..quantization import pipeline_stored_bytes
from ..shapes import ModelConfigs, model_configs, to_meta
from ..weights import Weights
from .lora_targets import adapter_targets
from .settings import DenoisingSettings
from .signature import require_arguments
from .single_file import single_file_of

CLIP_TOKENS = 77  # of Stable Diffusion 3's two CLIP encoders; its T5 adds max_sequence_length

AUDIO_TEXT_TOKENS = 128  # of Stable Audio's T5, padded

Inputs = Callable[[Any, Mapping[str, Any], int, torch.dtype, int], dict[str, Any]]


def outline_of(
    settings: DenoisingSettings, *, prompt_tokens: int = 0, group_size: int = 1, num_rows: int = 1
) -> Outline:
    """The outline of the settings' pipeline; of the numbers, only that of rows matters to it.

    Raises ConfigError if the pipeline does not take an argument of the settings, or mmgrpo does not know how its
    denoiser is called.
    """
    source, dtype = require_model(settings.model), DTYPES[settings.dtype]
    if source.startswith("python:"):
        pipeline = call_builder(source)
        modules = {name: to_meta(part) for name, part in pipeline.components.items() if isinstance(part, nn.Module)}
        origin, pipeline_class = source, type(pipeline)
    else:
        if single_file_of(source) is not None and settings.single_file_config is None:
            raise ConfigError(f"estimates for the one-file checkpoint {source} need policy.single_file_config")
        shapes = model_configs(settings.single_file_config or source, settings.revision)
        modules, origin = _modules(shapes), shapes.source
        pipeline_class = getattr(diffusers, shapes.pipeline, None)  # None: it is none of diffusers
    if pipeline_class is not None:
        require_arguments(pipeline_class, settings)
    modules = {name: cast_as_loaded(module, dtype).requires_grad_(False).eval() for name, module in modules.items()}
    denoiser: Any = modules.get("transformer")
    kind = type(denoiser).__name__
    if kind not in INPUTS or "transformer_2" in modules:
        raise ConfigError(
            f"memory and time estimates support pipelines with one {', '.join(INPUTS)}; got "
            f"{kind if denoiser else source}"
        )
    if settings.gradient_checkpointing:
        denoiser.enable_gradient_checkpointing()
    quantization = settings.quantization_config
    stored = {} if quantization is None else pipeline_stored_bytes(quantization, modules, settings.dtype)
    with torch.device("meta"):
        targets = adapter_targets({"transformer": denoiser}) if settings.lora and not settings.lora.targets else ()
        Weights({"transformer": denoiser}, settings.lora, targets, DiffusersFiles())
    inputs = INPUTS.get(pipeline_class.__name__ if pipeline_class else "", INPUTS[kind])
    guided = _guided(kind, settings.call)
    autocast = dtype if settings.lora is None and dtype != torch.float32 else None
    scale = _scale(modules)

    def forward(rows: int) -> Tensor:
        arguments = inputs(denoiser.config, settings.call, rows * guided, dtype, scale)
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            return denoiser(**arguments, return_dict=False)[0]

    rollout_rows, update_rows = min(settings.rollout_batch, num_rows), min(settings.update_batch, num_rows)
    joins = settings.join_steps or (settings.join_steps is None and not settings.compile)  # steps of the same rows
    joined = "one step of the update at a time, of which update_batch may hold several"
    joined += "" if settings.join_steps else " if the weights are sharded"
    return Outline(
        modules=modules,
        trained=("transformer",),
        sharded=(denoiser,),
        update=lambda: forward(update_rows).float().square().mean(),
        update_rows=update_rows,
        rollout=(Pass(call=lambda _: forward(rollout_rows)),),
        rollout_rows=rollout_rows,
        assumed=(
            f"sizes of {origin}",
            "weights of text encoders and the autoencoder count, their forward passes do not",
            *([joined] if joins and settings.update_batch >= 2 * num_rows else []),
        ),
        stored_bytes=stored,
        offloaded=[modules[name] for name in settings.offload if name in modules],
    )


def _modules(shapes: ModelConfigs) -> dict[str, nn.Module]:
    modules: dict[str, nn.Module] = {}
    with torch.device("meta"):
        for name, (library, kind, config) in shapes.components.items():
            module_class: Any = getattr({"diffusers": diffusers, "transformers": transformers}[library], kind, None)
            if module_class is None or not hasattr(module_class, "forward"):
                continue
            if library == "diffusers":
                modules[name] = module_class.from_config(dict(config))
            else:
                modules[name] = module_class(module_class.config_class(**config))
    return modules


def cast_as_loaded(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module in this dtype as ``from_pretrained`` loads it: some weights stay in float32."""
    declared: Any = getattr(module, "_keep_in_fp32_modules", None)
    float32_modules = tuple(declared or ())
    for name, parameter in module.named_parameters():
        if not any(part in name.split(".") for part in float32_modules):
            parameter.data = parameter.data.to(dtype)
    stored = module.state_dict().keys()
    for name, buffer in module.named_buffers():
        if name in stored and buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype)
    return module


def _scale(modules: Mapping[str, nn.Module]) -> int:
    """Pixels per side of a latent element."""
    config: Any = getattr(modules.get("vae"), "config", {})
    if "block_out_channels" in config:
        return 2 ** (len(config["block_out_channels"]) - 1)
    return int(config.get("scale_factor_spatial") or 8)


def _guided(kind: str, call: Mapping[str, Any]) -> int:
    """Denoiser rows per row of the rollout: two with classifier-free guidance."""
    return 2 if kind != "FluxTransformer2DModel" and call.get("guidance_scale", 5.0) > 1 else 1


def _size(call: Mapping[str, Any], *names: str) -> list[int]:
    if missing := [f"policy.call.{name}" for name in names if not isinstance(call.get(name), int)]:
        raise ConfigError(f"memory and time estimates need sizes: set {', '.join(missing)}")
    return [call[name] for name in names]


def _sd3_inputs(config: Any, call: Mapping[str, Any], rows: int, dtype: torch.dtype, scale: int) -> dict[str, Tensor]:
    height, width = _size(call, "height", "width")
    tokens = CLIP_TOKENS + call.get("max_sequence_length", 256)
    return {
        "hidden_states": torch.empty(rows, config.in_channels, height // scale, width // scale, dtype=dtype),
        "encoder_hidden_states": torch.empty(rows, tokens, config.joint_attention_dim, dtype=dtype),
        "pooled_projections": torch.empty(rows, config.pooled_projection_dim, dtype=dtype),
        "timestep": torch.empty(rows, dtype=dtype),
    }


def _flux_inputs(config: Any, call: Mapping[str, Any], rows: int, dtype: torch.dtype, scale: int) -> dict[str, Tensor]:
    height, width = _size(call, "height", "width")
    tokens, pixels = call.get("max_sequence_length", 512), (height // (2 * scale)) * (width // (2 * scale))
    inputs = {
        "hidden_states": torch.empty(rows, pixels, config.in_channels, dtype=dtype),
        "encoder_hidden_states": torch.empty(rows, tokens, config.joint_attention_dim, dtype=dtype),
        "pooled_projections": torch.empty(rows, config.pooled_projection_dim, dtype=dtype),
        "timestep": torch.empty(rows, dtype=dtype),
        "img_ids": torch.empty(pixels, 3),
        "txt_ids": torch.empty(tokens, 3),
    }
    return inputs | ({"guidance": torch.empty(rows)} if config.guidance_embeds else {})


def _kontext_inputs(
    config: Any, call: Mapping[str, Any], rows: int, dtype: torch.dtype, scale: int
) -> dict[str, Tensor]:
    """Those of FLUX with the tokens of an image, of the same size if it is not resized to a megapixel."""
    inputs = _flux_inputs(config, call, rows, dtype, scale)
    height, width = _size(call, "height", "width") if call.get("_auto_resize") is False else (1024, 1024)
    num_tokens = (height // (2 * scale)) * (width // (2 * scale))
    image = torch.empty(rows, num_tokens, config.in_channels, dtype=dtype)
    joined = {
        "hidden_states": torch.cat([inputs["hidden_states"], image], dim=1),
        "img_ids": torch.cat([inputs["img_ids"], torch.empty(num_tokens, 3)]),
    }
    return inputs | joined


def _stable_audio_inputs(
    config: Any, call: Mapping[str, Any], rows: int, dtype: torch.dtype, scale: int
) -> dict[str, Any]:
    """Latents of the full length, of which the pipeline returns the first seconds; a text, a start and an end."""
    tokens, rotary = AUDIO_TEXT_TOKENS + 2, (config.sample_size + 1, config.attention_head_dim // 2)
    return {
        "hidden_states": torch.empty(rows, config.in_channels, config.sample_size, dtype=dtype),
        "encoder_hidden_states": torch.empty(rows, tokens, config.cross_attention_input_dim, dtype=dtype),
        "global_hidden_states": torch.empty(rows, 1, config.global_states_input_dim, dtype=dtype),
        "timestep": torch.empty(1, dtype=dtype),
        "rotary_embedding": (torch.empty(rotary), torch.empty(rotary)),
    }


def _wan_inputs(config: Any, call: Mapping[str, Any], rows: int, dtype: torch.dtype, scale: int) -> dict[str, Tensor]:
    height, width, frames = _size(call, "height", "width", "num_frames")
    latent = (rows, config.in_channels, (frames - 1) // 4 + 1, height // scale, width // scale)
    return {
        "hidden_states": torch.empty(latent, dtype=dtype),
        "encoder_hidden_states": torch.empty(rows, call.get("max_sequence_length", 512), config.text_dim, dtype=dtype),
        "timestep": torch.empty(rows, dtype=torch.long),
    }


INPUTS: Mapping[str, Inputs] = {
    "SD3Transformer2DModel": _sd3_inputs,
    "FluxTransformer2DModel": _flux_inputs,
    "FluxKontextPipeline": _kontext_inputs,
    "StableAudioDiTModel": _stable_audio_inputs,
    "WanTransformer3DModel": _wan_inputs,
}
"""Inputs by pipeline class, else by denoiser class."""
