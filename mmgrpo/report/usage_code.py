"""Python code that loads an exported model, for its model card.

The code is generated from the exported files; ``tests/test_cards.py`` executes it for every kind of policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmgrpo.runs.adapter_files import ADAPTERS, PEFT_CONFIG, is_hub_id
from mmgrpo.system.targets import is_python_target

FOLDER = '"THIS_FOLDER_OR_REPOSITORY"'
LOADERS, PIPELINE_CLASS = "mmgrpo_loaders", "mmgrpo_pipeline"
"""Header keys of the diffusers file: the loading call of each component's adapters; the class of the pipeline."""

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""dtype name of safetensors -> name of torch."""

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")
SINGLE_FILE = ".safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """The exported model of a folder.

    Attributes:
        library: library that loads it: peft, diffusers or transformers.
        is_adapter: whether it needs the base model.
        model_class: class of the model or pipeline, if a file names it.
        model_type: model type of a transformers model.
        absent: components that the pipeline lacks, which from_pretrained gets as None if they are not optional.
        loaders: component -> call that loads its adapters, for adapters of a pipeline.
        dtypes: component -> dtype, for a full model; a transformers model has the key "".
        processor: class that loads the processor or tokenizer of the folder, if there is one.
    """

    library: str
    is_adapter: bool
    model_class: str | None = None
    model_type: str | None = None
    absent: tuple[str, ...] = ()
    loaders: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    processor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModelSource:
    """The source of the base model in the configuration of the run.

    Attributes:
        model: path, hub id, or the function that builds it.
        dtype: dtype that the run loaded it in.
        components: pipeline component -> dtype where it differs, None for a component that is not loaded.
        options: further arguments of ``from_pretrained``: revision, variant.
        single_file_config: folder or hub id of the pipeline configuration of a single-file checkpoint.
        quantization: ``policy.quantization_config`` of the run; empty: none.
    """

    model: str | None = None
    dtype: str = "float32"
    components: Mapping[str, str | None] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    single_file_config: str | None = None
    quantization: Mapping[str, Any] = field(default_factory=dict)


def exported_in(folder: Path) -> ExportedModel:
    """The exported model of a folder, by the file names of the libraries."""
    processor = "AutoTokenizer" if any((folder / name).is_file() for name in TOKENIZER_FILES) else None
    processor = "AutoProcessor" if any((folder / name).is_file() for name in PROCESSOR_FILES) else processor
    if (folder / ADAPTERS[0]).is_file() or (folder / PEFT_CONFIG).is_file():
        mapping = _mapping((_json(folder / PEFT_CONFIG) or {}).get("auto_mapping"))
        kind = _name(mapping.get("base_model_class"))
        return ExportedModel(library="peft", is_adapter=True, model_class=kind, processor=processor)
    if (folder / ADAPTERS[1]).is_file():
        loaders, kind = _header(folder / ADAPTERS[1])
        return ExportedModel(library="diffusers", is_adapter=True, model_class=kind, loaders=loaders)
    index = _json(folder / "model_index.json")
    if index is not None:
        kind = _name(index.get("_class_name"))
        parts = {entry.name: dtype for entry in sorted(folder.iterdir()) if (dtype := _dtype_in(entry))}
        return ExportedModel(
            library="diffusers", is_adapter=False, model_class=kind, absent=absent_in(index), dtypes=parts
        )
    config = _json(folder / "config.json") or {}
    dtype = config.get("dtype") or config.get("torch_dtype")
    return ExportedModel(
        library="transformers",
        is_adapter=False,
        model_class=_first_class(config),
        model_type=_name(config.get("model_type")),
        dtypes={"": dtype} if isinstance(dtype, str) and dtype in DTYPES.values() else {},
        processor=processor,
    )


def absent_in(index: Mapping[str, Any]) -> tuple[str, ...]:
    """Components that are absent according to the index of a pipeline."""
    return tuple(name for name, kind in index.items() if kind == [None, None] and name.isidentifier())


def usage(exported: ExportedModel, base: BaseModelSource) -> str:
    """The code that loads the model; paths and options of the base model are literals."""
    if exported.is_adapter:
        code = _peft_model(exported, base) if exported.library == "peft" else _pipeline_adapters(exported, base)
    else:
        code = _full_pipeline(exported) if exported.library == "diffusers" else _full_model(exported)
    return _quantization_note(exported, base) + code


def _quantization_note(exported: ExportedModel, base: BaseModelSource) -> str:
    """A comment about the quantized weights that adapters were trained on."""
    if not base.quantization:
        return ""
    literal = "".join(character for character in repr(dict(base.quantization)) if character.isprintable())
    effect = (
        "the code loads the original weights: outputs differ by the rounding of the quantization"
        if exported.is_adapter
        else "they were dequantized before the adapters were merged into them"
    )
    return f"# trained on weights quantized by {literal};\n# {effect}\n"


def _peft_model(exported: ExportedModel, base: BaseModelSource) -> str:
    exported = exported if exported.model_class else _with_class_of_base(exported, base)
    kind = auto_class(exported.model_class, exported.model_type)
    classes: list[str] = sorted({kind, *([exported.processor] if exported.processor else [])})
    load = f"base = {kind}.from_pretrained({_literal(base)}, {_arguments(base)}{_remote(exported)})"
    lines = [
        "import torch",
        "from peft import PeftModel",
        f"from transformers import {', '.join(classes)}",
        "",
        load,
        f"model = PeftModel.from_pretrained(base, {FOLDER})",
    ]
    return "\n".join(lines + _processor(exported))


def _with_class_of_base(exported: ExportedModel, base: BaseModelSource) -> ExportedModel:
    """The adapters with class and type of the base model, if its config.json is available locally."""
    config = _json(base_file(base.model, "config.json", base.options.get("revision"))) or {}
    return replace(exported, model_class=_first_class(config), model_type=_name(config.get("model_type")))


def base_file(model: str | None, name: str, revision: str | None) -> Path | None:
    """A file of a base model, in its folder or in the cache of the hub; None if it is absent; nothing is downloaded."""
    if model is None or is_python_target(model):
        return None
    if Path(model).is_dir():
        file = Path(model) / name
        return file if file.is_file() else None
    if not is_hub_id(model):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model, name, revision=revision)
    return Path(cached) if isinstance(cached, str) else None


def _first_class(config: Mapping[str, Any]) -> str | None:
    architectures = config.get("architectures")
    return _name(architectures[0]) if isinstance(architectures, list) and architectures else None


def _pipeline_adapters(exported: ExportedModel, base: BaseModelSource) -> str:
    by_peft = [name for name, loader in exported.loaders.items() if loader == "peft"]
    kind = exported.model_class if _is_single_file(base) and exported.model_class else "DiffusionPipeline"
    lines = ["import torch", f"from diffusers import {kind}"]
    lines += ["from peft import PeftModel"] if by_peft else []
    lines += ["", *_base_pipeline(base, kind)]
    if "pipeline" in exported.loaders.values() or not exported.loaders:
        lines.append(f"pipeline.load_lora_weights({FOLDER})")
    for name, loader in exported.loaders.items():
        if loader == "component":
            lines.append(f'pipeline.{name}.load_lora_adapter({FOLDER}, prefix="{name}", weight_name="{ADAPTERS[1]}")')
        if loader == "peft":
            lines.append(f'PeftModel.from_pretrained(pipeline.{name}, {FOLDER}, subfolder="{name}")  # in place')
    return "\n".join(lines)


def _is_single_file(base: BaseModelSource) -> bool:
    return base.model is not None and not is_python_target(base.model) and base.model.endswith(SINGLE_FILE)


def _base_pipeline(base: BaseModelSource, kind: str) -> list[str]:
    """The lines that load the base, as the run loaded it."""
    if _is_single_file(base):
        left_out = "".join(f", {name}=None" for name, dtype in base.components.items() if dtype is None)
        config = f", config={base.single_file_config!r}" if base.single_file_config else ""
        arguments = f"{_arguments(replace(base, components={}))}{config}{left_out}"
        dtypes = {name: dtype for name, dtype in base.components.items() if dtype in DTYPES.values()}
        casts = [f"pipeline.{name}.to(torch.{dtype})" for name, dtype in dtypes.items()]  # it takes one dtype for all
        return [f"pipeline = {kind}.from_single_file({_literal(base)}, {arguments})", *casts]
    path = Path(base.model) if base.model and not is_python_target(base.model) else None
    index = _json(path / "model_index.json") if path is not None and path.is_dir() else None
    left_out = [name for name, dtype in base.components.items() if dtype is None]
    absent = "".join(f", {name}=None" for name in dict.fromkeys([*left_out, *absent_in(index or {})]))
    return [f"pipeline = DiffusionPipeline.from_pretrained({_literal(base)}, {_arguments(base)}{absent})"]


def _full_pipeline(exported: ExportedModel) -> str:
    kind = exported.model_class or "DiffusionPipeline"
    absent = "".join(f", {name}=None" for name in exported.absent)
    dtypes = set(exported.dtypes.values()) or {"float32"}
    dtype = f"torch.{next(iter(dtypes))}"
    if len(dtypes) > 1:
        parts = ", ".join(f'"{name}": torch.{dtype_name}' for name, dtype_name in exported.dtypes.items())
        dtype = f"{{{parts}}}"
    return (
        f"import torch\nfrom diffusers import {kind}\n\nmodel = {kind}.from_pretrained({FOLDER}, dtype={dtype}{absent})"
    )


def _full_model(exported: ExportedModel) -> str:
    kind = auto_class(exported.model_class, exported.model_type)
    classes: list[str] = sorted({kind, *([exported.processor] if exported.processor else [])})
    dtype = exported.dtypes.get("", "float32")
    lines = [
        "import torch",
        f"from transformers import {', '.join(classes)}",
        "",
        f"model = {kind}.from_pretrained({FOLDER}, dtype=torch.{dtype}{_remote(exported)})",
    ]
    return "\n".join(lines + _processor(exported))


def _processor(exported: ExportedModel) -> list[str]:
    if exported.processor is None:
        return []
    name = "processor" if exported.processor == "AutoProcessor" else "tokenizer"
    return [f"{name} = {exported.processor}.from_pretrained({FOLDER}{_remote(exported)})"]


def auto_class(model_class: str | None, model_type: str | None = None) -> str:
    """The transformers class that loads a model: the Auto class of its task, else the class of the model.

    Args:
        model_class: class name of the model.
        model_type: model type of its configuration.

    Returns:
        The name of a transformers class; AutoModel for remote code.
    """
    import transformers
    from transformers.models.auto import modeling_auto as auto

    tasks = {
        "AutoModelForImageTextToText": auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        "AutoModelForCausalLM": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "AutoModelForMultimodalLM": auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        "AutoModelForMaskedLM": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    }
    if model_class is None:
        return next((name for name, classes in tasks.items() if model_type in classes), "AutoModelForCausalLM")
    for name, classes in tasks.items():
        types = [of for of, kind in classes.items() if model_class in (kind if isinstance(kind, tuple) else (kind,))]
        if types and not any(of.endswith("_thinker") for of in types):  # part of a model with a separate index
            return name
    return model_class if hasattr(transformers, model_class) else "AutoModel"


def _remote(exported: ExportedModel) -> str:
    is_foreign = exported.model_class and auto_class(exported.model_class, exported.model_type) == "AutoModel"
    return ", trust_remote_code=True" if is_foreign and exported.model_class != "AutoModel" else ""


def _literal(base: BaseModelSource) -> str:
    return repr(base.model if base.model and not is_python_target(base.model) else "BASE_MODEL")


def _arguments(base: BaseModelSource) -> str:
    default = base.dtype if base.dtype in DTYPES.values() else "float32"
    dtypes = {name: dtype for name, dtype in base.components.items() if dtype in DTYPES.values()}
    parts = {"default": default, **dtypes}.items()
    dtype = "{" + ", ".join(f'"{name}": torch.{each}' for name, each in parts) + "}" if dtypes else f"torch.{default}"
    return ", ".join([f"dtype={dtype}", *(f"{key}={value!r}" for key, value in base.options.items())])


def _header(file: Path) -> tuple[dict[str, str], str | None]:
    """The loaders and the pipeline class of the header, without invalid names."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            header = opened.metadata() or {}
        stated = _mapping(json.loads(header.get(LOADERS) or "{}"))
    except (SafetensorError, OSError, ValueError):
        return {}, None
    valid_loaders = ("pipeline", "component", "peft")
    loaders = {name: loader for name, loader in stated.items() if _name(name) and loader in valid_loaders}
    return loaders, _name(header.get(PIPELINE_CLASS))


def _dtype_in(folder: Path) -> str | None:
    """The dtype of the first floating-point weight of a component."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() and _name(folder.name) else []
    try:
        for file in files[:1]:
            with safe_open(file, framework="pt") as opened:
                dtypes = [str(opened.get_slice(key).get_dtype()) for key in opened.keys()]  # noqa: SIM118
            return next((DTYPES[dtype] for dtype in dtypes if dtype in DTYPES), None)
    except (SafetensorError, OSError):
        return None
    return None


def _json(file: Path | None) -> Mapping[str, Any] | None:
    try:
        return _mapping(json.loads(file.read_text(encoding="utf-8"))) if file and file.is_file() else None
    except (OSError, ValueError):
        return None


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
