"""Frozen base weights in 4 or 8 bit, by the quantizers of transformers and diffusers, under adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError
from mmgrpo.system.extras import required

from .model_source import DTYPES

if TYPE_CHECKING:
    from diffusers.quantizers import PipelineQuantizationConfig  # seconds to import, with bitsandbytes

KEY = "policy.quantization_config"
QUANTIZATION_KEYS = ("quantization_config", "_pre_quantization_dtype")
"""Keys that diffusers adds to the configuration of a quantized model."""

EXCLUDING = ("llm_int8_skip_modules", "modules_to_not_convert")
"""Arguments that exclude layers, of bitsandbytes and torchao."""

PIPELINE_ARGUMENTS = ("quant_backend", "quant_kwargs", "components_to_quantize", "quant_mapping")

LARGE_COMPONENTS = ("transformer", "unet", "text_encoder")
"""Beginnings of the names that diffusers gives to denoisers and text encoders."""

SMALL_CLASSES = ("CLIPText",)
"""Beginnings of the classes of text encoders that stay as they are."""

SAMPLE_WIDTH = 1024

PROBE_ERROR = 0.05
"""Largest relative error of a gradient through a quantized layer: 8-bit kernels round inputs, and bfloat16 rounds."""


COMPUTE_DTYPE = "bnb_4bit_compute_dtype"
"""Argument of bitsandbytes with the dtype of the products of 4-bit layers; its default is float32."""


def model_quantization(values: Mapping[str, Any], dtype: str) -> Any:
    """The quantization of a transformers model; 4-bit layers of bitsandbytes compute in its dtype if they name none.

    Args:
        values: the arguments of a configuration class of transformers with its ``quant_method``, or with
            ``load_in_4bit`` or ``load_in_8bit`` alone; ``quant_type`` of torchao may be a mapping of the ``name`` of
            one of torchao's classes and its arguments.
        dtype: the dtype of the model, by name.

    Returns:
        The configuration object of transformers.

    Raises:
        ConfigError: transformers does not accept it, or would ignore one of the arguments.
        MissingPackageError: its library is not installed.
    """
    return _configuration(values, _reader("transformers"), KEY, dtype)


def pipeline_quantization(
    values: Mapping[str, Any],
    index: Mapping[str, Any],
    dtype: str,
    dtypes: Mapping[str, str | None] = MappingProxyType({}),
) -> PipelineQuantizationConfig:
    """The quantization of a pipeline; 4-bit layers of bitsandbytes compute in its dtype if they name none.

    Args:
        values: the arguments of diffusers' ``PipelineQuantizationConfig``; each value of ``quant_mapping`` is a mapping
            as that of ``model_quantization``, of the library of its component. A mapping as that of
            ``model_quantization`` alone applies to the denoisers, and to the text encoders except for those of CLIP.
        index: the components of the pipeline with their libraries and classes, of ``model_index.json``.
        dtype: the dtype of the pipeline, by name.
        dtypes: components with another dtype; None: the component is omitted.

    Returns:
        The configuration object of diffusers.

    Raises:
        ConfigError: diffusers does not accept it, would ignore an argument, or the pipeline has no such component.
        MissingPackageError: its library is not installed.
    """
    from diffusers.quantizers import PipelineQuantizationConfig

    names = [name for name in index if not name.startswith("_")]
    of_components = any(name in values for name in PIPELINE_ARGUMENTS)
    if not of_components:
        values = {"quant_mapping": dict.fromkeys(filter(partial(_is_large, index), names), values)}
    components = [*(values.get("quant_mapping") or ()), *_names(values.get("components_to_quantize"))]
    if names and (unknown := sorted(set(components) - set(names))):
        raise ConfigError(f"{KEY}: the pipeline has no {', '.join(unknown)}; it has {', '.join(names)}")
    mapping = {
        name: _configuration(
            value,
            _reader((index.get(name) or ["diffusers"])[0]),
            f"{KEY}.quant_mapping.{name}" if of_components else KEY,
            dtypes.get(name) or dtype,
        )
        for name, value in (values.get("quant_mapping") or {}).items()
    }
    backend = str(values.get("quant_backend") or "")
    _require_library(backend, KEY)
    if backend == "bitsandbytes_4bit" and isinstance(values.get("quant_kwargs"), Mapping):
        values = {**values, "quant_kwargs": _with_compute_dtype(values["quant_kwargs"], dtype)}
    try:
        arguments: dict[str, Any] = {**values, **({"quant_mapping": mapping} if mapping else {})}
        config = PipelineQuantizationConfig(**arguments)
        if backend:  # diffusers creates the configuration of a component when it loads its weights
            kwargs: Any = config.quant_kwargs
            for known in (quantizer[backend](**kwargs) for quantizer in config._get_quant_config_list() if quantizer):
                _require_read(known, kwargs, f"{KEY}.quant_kwargs")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{KEY}: {_line(error)}") from error
    return config


def pipeline_stored_bytes(
    values: Mapping[str, Any], modules: Mapping[str, nn.Module], dtype: str
) -> dict[nn.Module, int]:
    """As ``stored_bytes``, of the components of a pipeline. Raises ConfigError as ``pipeline_quantization``."""
    kinds = {name: type(module) for name, module in modules.items()}
    index = {name: [kind.__module__.partition(".")[0], kind.__name__] for name, kind in kinds.items()}
    config, result = pipeline_quantization(values, index, dtype), dict[nn.Module, int]()
    for name, module in modules.items():
        is_diffusers = not isinstance(module, PreTrainedModel)
        configuration = config._resolve_quant_config(is_diffusers=is_diffusers, module_name=name)
        result |= {} if configuration is None else stored_bytes(module, configuration)
    return result


def _is_large(index: Mapping[str, Any], name: str) -> bool:
    """Whether a component of a pipeline is a denoiser or a large text encoder; those that it omits are not."""
    library, kind = index[name]
    return bool(library) and name.startswith(LARGE_COMPONENTS) and not str(kind).startswith(SMALL_CLASSES)


def _names(components: Any) -> list[str]:
    return [components] if isinstance(components, str) else list(components or ())


def _reader(library: str) -> Callable[[dict[str, Any]], Any]:
    """Reads a configuration by the library of a component: transformers, or else diffusers."""
    if library == "transformers":
        from transformers.quantizers.auto import AutoQuantizationConfig

        return AutoQuantizationConfig.from_dict
    from diffusers.quantizers.auto import DiffusersAutoQuantizer

    return DiffusersAutoQuantizer.from_dict


def _configuration(values: Any, read: Callable[[dict[str, Any]], Any], key: str, dtype: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{key} must be a mapping, for example {{load_in_4bit: true}}; got {values!r}")
    arguments = dict(values)
    if arguments.get("load_in_4bit"):
        arguments = _with_compute_dtype(arguments, dtype)
    is_bitsandbytes = bool(arguments.get("load_in_4bit") or arguments.get("load_in_8bit"))
    _require_library("bitsandbytes" if is_bitsandbytes else str(arguments.get("quant_method") or ""), key)
    if isinstance(arguments.get("quant_type"), Mapping) and "name" in arguments["quant_type"]:
        arguments["quant_type"] = {"default": _torchao_type(arguments["quant_type"], f"{key}.quant_type")}
    try:
        config = read(arguments)
    except (TypeError, ValueError, AttributeError, KeyError, AssertionError) as error:
        raise ConfigError(f"{key}: {_line(error)}") from error
    _require_read(config, arguments, key)
    return config


def _with_compute_dtype(arguments: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    return {**arguments, COMPUTE_DTYPE: arguments.get(COMPUTE_DTYPE) or dtype}


def _require_read(config: Any, arguments: Mapping[str, Any], key: str) -> None:
    """Raises ConfigError for arguments that a configuration of the libraries ignores."""
    if ignored := sorted(name for name in arguments if not hasattr(config, name)):
        names = ", ".join(dict.fromkeys(name.lstrip("_") for name in vars(config)))
        raise ConfigError(f"{key}: {type(config).__name__} has no {', '.join(ignored)}; it has {names}")


def torchao_configuration(values: Mapping[str, Any], key: str) -> Any:
    """A configuration of torchao.

    Args:
        values: the ``name`` of one of its classes, and its arguments; names of dtypes become dtypes.
        key: the setting, for messages.

    Returns:
        The object of torchao.

    Raises:
        ConfigError: torchao has no such class, or does not accept the arguments.
        MissingPackageError: torchao is not installed.
    """
    quantization = required("torchao.quantization", key)
    arguments = {name: _dtype(value) for name, value in values.items() if name != "name"}
    names = sorted(name for name in dir(quantization) if name.endswith("Config"))
    if values.get("name") not in names:
        raise ConfigError(f"{key}: torchao has no {values.get('name')}; it has {', '.join(names)}")
    try:
        return getattr(quantization, values["name"])(**arguments)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"{key}: {_line(error)}") from error


def _torchao_type(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """torchao's mapping of one of its classes."""
    configuration = torchao_configuration(values, key)
    from torchao.core.config import config_to_dict

    try:
        return config_to_dict(configuration)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"{key}: {_line(error)}") from error


def quantized_weight(weight: Tensor, configuration: Any) -> Tensor:
    """A weight of a linear layer in a format of torchao; the weight itself does not change.

    Shapes: (out, in) -> (out, in).   Raises: ConfigError for a format that this device or this shape does not support.
    """
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    try:
        required("torchao.quantization", KEY).quantize_(layer, configuration)
    except (AssertionError, RuntimeError, NotImplementedError, ValueError, ImportError) as error:
        raise ConfigError(f"{type(configuration).__name__} on {weight.device.type}: {_line(error)}") from error
    return layer.weight


def _dtype(value: Any) -> Any:
    dtype = getattr(torch, value, None) if isinstance(value, str) else None
    return dtype if isinstance(dtype, torch.dtype) else value


def _require_library(method: str, key: str) -> None:
    for library in ("bitsandbytes", "torchao"):
        if method.startswith(library):
            required(library, key)


def _line(error: Exception) -> str:
    return " ".join(f"{error or type(error).__name__}".split())


def loading_errors(quantization: Mapping[str, Any] | None) -> tuple[type[Exception], ...]:
    """The errors by which transformers and diffusers report that they cannot load a model so."""
    return (OSError, ValueError, ImportError, *(() if quantization is None else (RuntimeError,)))


def require_no_quantization(quantization: Mapping[str, Any] | None) -> None:
    """Raises ConfigError if a model that a Python function returns, or that is a single file, is to be quantized."""
    if quantization is not None:
        raise ConfigError(
            f"{KEY} needs a folder written by save_pretrained or a hub id as policy.model; quantize the model in the "
            "function of a python: model, and convert a one-file checkpoint to a folder"
        )


def cast_model(model: Any, dtype: str) -> Any:
    """A model in a dtype, by name. Raises ConfigError for a model with quantized weights and another dtype."""
    if not quantized_layers(model):
        return model.to(DTYPES[dtype])
    if arithmetic_dtype(model) != DTYPES[dtype]:
        raise ConfigError(
            f"policy.dtype is {dtype}, and the quantized {type(model).__name__} was loaded in "
            f"{arithmetic_dtype(model)}: load it in the same dtype, or set policy.dtype"
        )
    return model


def is_quantized_layer(layer: nn.Module) -> bool:
    """Whether the layer itself has a weight in a quantized format, of bitsandbytes, torchao or diffusers."""
    weight = layer._parameters.get("weight")
    if weight is None:
        return False
    return not weight.is_floating_point() or type(weight.data) not in (Tensor, nn.Parameter)


def quantized_layers(module: nn.Module) -> dict[str, nn.Module]:
    """The layers of a module with quantized weights, by path."""
    return {path: layer for path, layer in module.named_modules() if is_quantized_layer(layer)}


def arithmetic_dtype(module: nn.Module) -> torch.dtype:
    """The dtype of a module's first weight that is not quantized; float32 if there is none."""
    quantized = {id(layer._parameters["weight"]) for layer in quantized_layers(module).values()}
    dtypes = (p.dtype for p in module.parameters() if p.is_floating_point() and id(p) not in quantized)
    return next(dtypes, torch.float32)


def prepare_quantized(name: str, module: nn.Module) -> None:
    """Prepares a frozen module with quantized layers for training adapters; other modules do not change.

    The first call of a 4-bit layer of bitsandbytes without grad, on a CPU with AVX512 for bfloat16, packs its weights
    for a kernel without a backward: later gradients of earlier layers would be lost without an error. This turns the
    packing off, and undoes it.

    Args:
        name: of the component, for messages.
        module: the module, before adapters are added.

    Raises:
        ConfigError: gradients do not pass through its layers.
    """
    layers: dict[str, Any] = dict(quantized_layers(module))
    dtype = arithmetic_dtype(module)
    for path, layer in layers.items():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.state_dict()  # undoes the packing
            layer.support_avx512bf16_for_cpu = False
        if getattr(getattr(layer, "state", None), "threshold", 0.0):
            raise ConfigError(
                f"{name}.{path} ({type(layer).__name__}) has llm_int8_threshold {layer.state.threshold:g}: columns of "
                "outliers are selected over all rows of a batch, so a log-probability depends on the other rows; "
                "quantize the original weights with llm_int8_threshold: 0.0"
            )
    kinds = {(type(layer), type(layer.weight.data)): (path, layer) for path, layer in layers.items()}
    for path, layer in kinds.values():
        if (reason := _gradient_error(layer, dtype)) is not None:
            raise ConfigError(
                f"adapters of {name} cannot be trained: no gradient passes through its quantized layers, such as "
                f"{path} ({type(layer).__name__}, {type(layer.weight.data).__name__}): {reason}; quantize the weights "
                "alone: load_in_4bit or load_in_8bit of bitsandbytes, Int8WeightOnlyConfig of torchao"
            )


def _gradient_error(layer: Any, dtype: torch.dtype) -> str | None:
    """Why a quantized linear layer does not pass the gradient of its weights; None if it does, or is no linear map."""
    width = getattr(layer, "in_features", None)
    if width is None:
        return None
    with torch.no_grad():
        weight = dequantized_weight(layer).float()
    expected = weight.sum(0)
    try:
        with torch.enable_grad():
            inputs = torch.zeros(1, width, dtype=dtype, device=weight.device).add_(0.5).requires_grad_()
            (gradient,) = torch.autograd.grad(layer(inputs).float().sum(), inputs)
    except (RuntimeError, NotImplementedError) as error:
        return _line(error)
    relative = float((gradient[0].float() - expected).norm() / expected.norm().clamp_min(1e-12))
    return None if relative < PROBE_ERROR else f"its gradient differs from its weights' by {relative:.1%}"


@torch.no_grad()
def dequantized_weight(layer: nn.Module) -> Tensor:
    """The weight of a linear layer, dequantized if it is quantized. Raises ConfigError for a format without that."""
    try:
        return dequantize_module_weight(layer)
    except (NotImplementedError, RuntimeError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"weights of {type(layer).__name__} ({type(layer.weight).__name__}) cannot be dequantized: {_line(error)}; "
            "quantize by bitsandbytes or by a weight-only configuration of torchao"
        ) from error


def dequantized_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict of a module with dequantized weights in its dtype, and no other values of the quantization."""
    state, dtype = dict(module.state_dict()), arithmetic_dtype(module)
    for path, layer in quantized_layers(module).items():
        for name in [name for name in state if name.startswith(f"{path}.") and name != f"{path}.bias"]:
            del state[name]
        state[f"{path}.weight"] = dequantized_weight(layer).to(dtype)
    return state


def dequantize_layers(module: nn.Module) -> None:
    """Replaces quantized linear layers in place with linear layers of the dequantized weights, in float32."""
    for path, layer in quantized_layers(module).items():
        weight, bias = dequantized_weight(layer).float(), layer._parameters.get("bias")
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias.detach().float(), requires_grad=False)
        module.set_submodule(path, linear)
    remove_quantizer(module)


def remove_quantizer(model: Any) -> None:
    """Removes the quantizer of transformers or diffusers from a model and from its configuration, without changing
    weights; other modules do not change.
    """
    if getattr(model, "hf_quantizer", None) is None:
        return
    if not isinstance(model, PreTrainedModel):
        from diffusers.configuration_utils import FrozenDict

        del model.hf_quantizer
        settings = {key: value for key, value in model.config.items() if key not in QUANTIZATION_KEYS}
        vars(model)["_internal_dict"] = FrozenDict(settings)
    else:
        quantizer: Any = model.hf_quantizer
        quantizer.remove_quantization_config(model)
    for name in {"is_quantized", "is_loaded_in_4bit", "is_loaded_in_8bit", "quantization_method"} & vars(model).keys():
        delattr(model, name)


def stored_bytes(module: nn.Module, configuration: Any) -> dict[nn.Module, int]:
    """Bytes of the weights of the layers that a quantization replaces.

    They are those of linear layers, without output heads and the layers that the configuration excludes. The size of a
    weight is measured on one layer.

    Args:
        module: a module without adapters, on any device.
        configuration: of transformers or diffusers.

    Returns:
        The bytes; empty if the size is unknown: another library, or a format that needs a GPU.
    """
    ratio = _bytes_per_weight(configuration)
    if ratio is None:
        return {}
    names = next(filter(None, (getattr(configuration, key, None) for key in EXCLUDING)), ())
    head = module.get_output_embeddings() if isinstance(module, PreTrainedModel) else None
    return {
        layer: int(ratio * layer.weight.numel())
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and layer is not head and not set(path.split(".")) & set(names)
    }


def _bytes_per_weight(configuration: Any) -> float | None:
    """Stored bytes of a layer of ``SAMPLE_WIDTH`` squared weights, by weight; None if they are unknown."""
    layer: Any = nn.Linear(SAMPLE_WIDTH, SAMPLE_WIDTH, bias=False, dtype=torch.bfloat16)
    if getattr(configuration, "load_in_4bit", False) or getattr(configuration, "load_in_8bit", False):
        layers = required("bitsandbytes", KEY).nn
        if configuration.load_in_4bit:
            double, kind = configuration.bnb_4bit_use_double_quant, configuration.bnb_4bit_quant_type
            quantized = layers.Linear4bit(*layer.weight.shape, bias=False, compress_statistics=double, quant_type=kind)
        else:
            quantized = layers.Linear8bitLt(*layer.weight.shape, bias=False, has_fp16_weights=False)
        quantized.load_state_dict(layer.state_dict())
        layer = quantized.to("cpu")
    elif hasattr(configuration, "quant_type"):
        try:
            required("torchao.quantization", KEY).quantize_(layer, configuration.quant_type)
        except (ImportError, RuntimeError, NotImplementedError, AssertionError, ValueError):
            return None
    else:
        return None
    return sum(map(_nbytes, layer.state_dict().values())) / SAMPLE_WIDTH**2


def _nbytes(tensor: Tensor) -> int:
    """Bytes of a tensor, or of those that it consists of."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    return tensor.nbytes if flatten is None else sum(_nbytes(getattr(tensor, name)) for name in flatten()[0])
