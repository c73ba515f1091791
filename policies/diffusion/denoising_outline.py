"""A pipeline in outline: its components on the meta device, and the denoiser's call with inputs of the right shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import diffusers
import torch
import transformers
from torch import Tensor, nn

from mmgrpo.errors import ConfigError
from mmgrpo.outline import Outline, Pass

from ..adapter_files import DiffusersFiles
from ..model_source import DTYPES, call_builder, require_model
from ..shapes import ModelConfigs, model_configs, to_meta
from ..weights import Weights
from .lora_targets import adapter_targets
from .settings import DenoisingSettings
from .single_file import single_file_of

CLIP_TOKENS = 77  # of Stable Diffusion 3's two CLIP encoders, beside which its T5 has max_sequence_length

Inputs = Callable[[Any, Mapping[str, Any], int, torch.dtype, int], dict[str, Tensor]]


def outline_of(
    settings: DenoisingSettings, *, prompt_tokens: int = 0, group_size: int = 1, num_rows: int = 1
) -> Outline:
    """The outline of the pipeline that the settings name; of the numbers that of rows alone matters to it.

    Raises ConfigError where it is not known how it is called.
    """
    source, dtype = require_model(settings.model), DTYPES[settings.dtype]
    if source.startswith("python:"):
        components = call_builder(source).components.items()
        modules = {name: to_meta(part) for name, part in components if isinstance(part, nn.Module)}
        said = source
    else:
        if single_file_of(source) is not None and settings.single_file_config is None:
            raise ConfigError(f"the sizes of {source} are not known without policy.single_file_config")
        shapes = model_configs(settings.single_file_config or source, settings.revision)
        modules, said = _modules(shapes), shapes.source
    modules = {name: _cast(module, dtype).requires_grad_(False).eval() for name, module in modules.items()}
    denoiser: Any = modules.get("transformer")
    kind = type(denoiser).__name__
    if kind not in INPUTS or "transformer_2" in modules:
        raise ConfigError(
            f"how {kind if denoiser else source} is called is not known without it: memory and time are predicted for "
            f"pipelines with one {', '.join(INPUTS)}"
        )
    if settings.gradient_checkpointing:
        denoiser.enable_gradient_checkpointing()
    with torch.device("meta"):
        targets = adapter_targets({"transformer": denoiser}) if settings.lora and not settings.lora.targets else ()
        Weights({"transformer": denoiser}, settings.lora, targets, DiffusersFiles())
    inputs, guided = INPUTS[kind], _guided(kind, settings.call)
    autocast = dtype if settings.lora is None and dtype != torch.float32 else None
    scale = _scale(modules)

    def forward(rows: int) -> Tensor:
        given = inputs(denoiser.config, settings.call, rows * guided, dtype, scale)
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            return denoiser(**given, return_dict=False)[0]

    drawn, learnt = min(settings.rollout_batch, num_rows), min(settings.update_batch, num_rows)
    return Outline(
        modules=modules,
        trained=("transformer",),
        sharded=(denoiser,),
        update=lambda: forward(learnt).float().square().mean(),
        update_rows=learnt,
        rollout=(Pass(call=lambda _: forward(drawn)),),
        rollout_rows=drawn,
        assumed=(
            f"sizes of {said}",
            "what text encoders and the autoencoder hold is counted, what their passes take is not",
        ),
    )


def _modules(shapes: ModelConfigs) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {}
    with torch.device("meta"):
        for name, (library, kind, config) in shapes.components.items():
            own: Any = getattr({"diffusers": diffusers, "transformers": transformers}[library], kind, None)
            if own is None or not hasattr(own, "forward"):
                continue
            if library == "diffusers":
                found[name] = own.from_config(dict(config))
            else:
                found[name] = own(own.config_class(**config))
    return found


def _cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module as ``from_pretrained`` has it in this dtype: with some of its weights kept in float32."""
    kept = tuple(getattr(module, "_keep_in_fp32_modules", None) or ())
    for name, parameter in module.named_parameters():
        if not any(one in name.split(".") for one in kept):
            parameter.data = parameter.data.to(dtype)
    stored = module.state_dict().keys()
    for name, buffer in module.named_buffers():
        if name in stored and buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype)
    return module


def _scale(modules: Mapping[str, nn.Module]) -> int:
    """Pixels to a side of a latent's element."""
    config: Any = getattr(modules.get("vae"), "config", {})
    if "block_out_channels" in config:
        return 2 ** (len(config["block_out_channels"]) - 1)
    return int(config.get("scale_factor_spatial") or 8)


def _guided(kind: str, call: Mapping[str, Any]) -> int:
    """Rows of the denoiser for a row of the rollout: two with classifier-free guidance."""
    return 2 if kind != "FluxTransformer2DModel" and call.get("guidance_scale", 5.0) > 1 else 1


def _size(call: Mapping[str, Any], *names: str) -> list[int]:
    if missing := [f"policy.call.{name}" for name in names if not isinstance(call.get(name), int)]:
        raise ConfigError(f"memory and time are predicted for known sizes: set {', '.join(missing)}")
    return [call[name] for name in names]


def _of_sd3(config: Any, call: Mapping[str, Any], rows: int, dtype: torch.dtype, scale: int) -> dict[str, Tensor]:
    height, width = _size(call, "height", "width")
    tokens = CLIP_TOKENS + call.get("max_sequence_length", 256)
    return {
        "hidden_states": torch.empty(rows, config.in_channels, height // scale, width // scale, dtype=dtype),
        "encoder_hidden_states": torch.empty(rows, tokens, config.joint_attention_dim, dtype=dtype),
        "pooled_projections": torch.empty(rows, config.pooled_projection_dim, dtype=dtype),
        "timestep": torch.empty(rows, dtype=dtype),
    }


def _of_flux(config: Any, call: Mapping[str, Any], rows: int, dtype: torch.dtype, scale: int) -> dict[str, Tensor]:
    height, width = _size(call, "height", "width")
    tokens, pixels = call.get("max_sequence_length", 512), (height // (2 * scale)) * (width // (2 * scale))
    given = {
        "hidden_states": torch.empty(rows, pixels, config.in_channels, dtype=dtype),
        "encoder_hidden_states": torch.empty(rows, tokens, config.joint_attention_dim, dtype=dtype),
        "pooled_projections": torch.empty(rows, config.pooled_projection_dim, dtype=dtype),
        "timestep": torch.empty(rows, dtype=dtype),
        "img_ids": torch.empty(pixels, 3),
        "txt_ids": torch.empty(tokens, 3),
    }
    return given | ({"guidance": torch.empty(rows)} if config.guidance_embeds else {})


def _of_wan(config: Any, call: Mapping[str, Any], rows: int, dtype: torch.dtype, scale: int) -> dict[str, Tensor]:
    height, width, frames = _size(call, "height", "width", "num_frames")
    latent = (rows, config.in_channels, (frames - 1) // 4 + 1, height // scale, width // scale)
    return {
        "hidden_states": torch.empty(latent, dtype=dtype),
        "encoder_hidden_states": torch.empty(rows, call.get("max_sequence_length", 512), config.text_dim, dtype=dtype),
        "timestep": torch.empty(rows, dtype=torch.long),
    }


INPUTS: Mapping[str, Inputs] = {
    "SD3Transformer2DModel": _of_sd3,
    "FluxTransformer2DModel": _of_flux,
    "WanTransformer3DModel": _of_wan,
}
"""The denoisers that can be called in outline."""
