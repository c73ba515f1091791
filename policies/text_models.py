"""Loading of transformers models that read and write tokens, and their language-model layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
)
from transformers.pytorch_utils import Conv1D

from mmgrpo.errors import ConfigError, MissingPackageError
from mmgrpo.system.hub import explain_load_error

from .forward_replacement import replaced_forward
from .model_source import DTYPES
from .quantization import is_quantized_layer, loading_errors, model_quantization

FUSING = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
FUSED = ("out_proj", "conv1d")
"""Layers whose weights the kernels of these models read without calling the layer: an adapter there would have no
effect.
"""


class LoadingSettings(Protocol):
    """Settings for loading a model."""

    @property
    def revision(self) -> str | None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def attention(self) -> str | None: ...
    @property
    def processor(self) -> Mapping[str, Any]: ...


def pretrained(
    source: str,
    settings: LoadingSettings,
    *,
    what: str,
    quantization: Mapping[str, Any] | None = None,
    device: str | torch.device = "cpu",
) -> tuple[PreTrainedModel, Any]:
    """A model and its processor, or its tokenizer if the model is text-only.

    Args:
        source: a folder written by ``save_pretrained``, or a hub id.
        settings: how to load it.
        what: the kind of model, for the message.
        quantization: of its weights; None: as they are stored.
        device: of a model with quantized weights; others are loaded on the CPU.

    Returns:
        Both.

    Raises:
        ConfigError: it cannot be loaded.
    """
    location: dict[str, Any] = {"pretrained_model_name_or_path": source, "revision": settings.revision or "main"}
    location |= {"trust_remote_code": False}  # left out, transformers would ask at the terminal
    try:
        config = AutoConfig.from_pretrained(**location)
        writer = getattr(config, "thinker_config", config)  # of a model that speaks, too, the part that writes
        takes_images = type(writer) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        takes_audio = not takes_images and type(writer) in MODEL_FOR_MULTIMODAL_LM_MAPPING
        model_class = AutoModelForImageTextToText if takes_images else AutoModelForCausalLM
        model_class = AutoModelForMultimodalLM if takes_audio else model_class
        processor_class = AutoProcessor if takes_images or takes_audio else AutoTokenizer
        model_arguments: dict[str, Any] = {} if writer is config else {"config": writer}
        model_arguments |= {} if settings.attention is None else {"attn_implementation": settings.attention}
        model_arguments |= _quantized_loading(source, config, quantization, device, dtype=settings.dtype)
        model = model_class.from_pretrained(**location, dtype=DTYPES[settings.dtype], **model_arguments)
        return model, processor_class.from_pretrained(**{**location, **settings.processor})
    except (ConfigError, MissingPackageError):
        raise
    except loading_errors(quantization) as error:
        why = explain_load_error(source, error, revision=settings.revision)
        raise ConfigError(f"policy.model {source!r} cannot be loaded as {what}: {why}") from error


def _quantized_loading(
    source: str, config: Any, quantization: Mapping[str, Any] | None, device: str | torch.device, *, dtype: str
) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` for a model with quantized weights."""
    stored = getattr(config, "quantization_config", None)
    if quantization is None:
        return {} if stored is None else {"device_map": {"": device}}
    if stored is not None:
        raise ConfigError(
            f"policy.model {source!r} has quantized weights already ({stored.get('quant_method')}): remove "
            "policy.quantization_config"
        )
    return {"quantization_config": model_quantization(quantization, dtype), "device_map": {"": device}}


def language_parameters(model: PreTrainedModel) -> set[nn.Parameter]:
    """The parameters of the language model only: its decoder and its embeddings."""
    parts = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    return {parameter for part in parts if part is not None for parameter in part.parameters()}


def language_linears(model: PreTrainedModel) -> list[str]:
    """Paths of the language model's linear layers, without the output embeddings and layers that peft does not
    support.
    """
    head = model.get_output_embeddings()
    writer = model.get_decoder()
    if writer is None or all(module in (writer, head) for module in writer.modules()):  # named so, it is the head alone
        writer = model
    decoder = {id(module) for module in writer.modules()}
    fused = FUSED if model.config.model_type in FUSING else ()
    return [
        path
        for path, module in model.named_modules()
        if _is_linear(module) and id(module) in decoder and module is not head and path.rpartition(".")[2] not in fused
    ]


@torch.no_grad()
def _is_linear(module: nn.Module) -> bool:
    """Whether the module is a linear map; routers and grouped layers inherit from the class, but are not."""
    if type(module) in (nn.Linear, Conv1D) or not isinstance(module, nn.Linear):
        return type(module) in (nn.Linear, Conv1D)
    if is_quantized_layer(module):
        return True
    dtype = module.weight.dtype if module.weight.is_floating_point() else torch.float32
    try:
        output = module(torch.zeros(1, module.in_features, dtype=dtype, device=module.weight.device))
    except (RuntimeError, TypeError, ValueError):
        return False
    return isinstance(output, torch.Tensor) and output.shape[-1] == module.out_features


def require_checkpointing(model: PreTrainedModel) -> None:
    """Raises ConfigError for a model without layers that ``checkpointing`` can run again."""
    if not _checkpointed_layers(model):
        raise ConfigError(
            f"policy.gradient_checkpointing: {type(model).__name__} has no layers of transformers that run again in "
            "the backward pass: set it to false"
        )


@contextmanager
def checkpointing(model: PreTrainedModel, enabled: bool) -> Iterator[None]:
    """A context in which layers store their inputs alone and run again in the backward pass, if requested.

    transformers' own checkpointing drops the cache. Here a layer may read a cache that it does not change
    (``PrefixLayer``), and its hooks, as those of FSDP, run once.
    """
    layers = _checkpointed_layers(model) if enabled and torch.is_grad_enabled() else []
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(replaced_forward(layer, partial(checkpoint, use_reentrant=False)))
        yield


def _checkpointed_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers that transformers checkpoints, without those within others: these would run as is in a repetition."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    inner = {part for layer in layers for part in layer.modules() if part is not layer}
    return [layer for layer in layers if layer not in inner]
