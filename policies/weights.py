"""The trained weights of a policy, its named weights, and their files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from peft import inject_adapter_in_model, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.layouts import has_deferred_moves, layout_of, move_modules
from mmgrpo.policy import NamedWeights
from mmgrpo.shards import is_sharded, load_module, save_module
from mmgrpo.system.embedding_weights import mark_embeddings
from mmgrpo.values import REFERENCE

from .adapter_formats import AdapterFiles, PeftFiles, lora_config, require_same_shapes
from .adapters import read_adapter, read_tensors
from .lora import LoraSettings
from .named_weights import ADAPTER, ModuleCopies, NamedAdapters, require_name
from .quantization import arithmetic_dtype, prepare_quantized, quantized_layers

STORED_FOLDER = "kept"


class Weights(NamedWeights):
    """The trained modules of a policy, their files, and further weights under names.

    Attributes:
        modules: the modules by component name.
        lora: the adapters' settings; None: every weight is trained.
        dtype: dtype of the modules before; modules that are trained in full become float32.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        lora: LoraSettings | None = None,
        targets: str | Sequence[str] = (),
        files: AdapterFiles | None = None,
    ) -> None:
        """Adds the adapters and freezes the weights that are not trained, in place; turns dropout off.

        Args:
            modules: the modules by component name.
            lora: the adapters' settings; None trains every weight.
            targets: the layers that carry adapters if ``lora.targets`` is None.
            files: the file format of adapters; None: that of peft, for one module.
        """
        self.modules = dict(modules)
        self.dtype = next((arithmetic_dtype(module) for module in self.modules.values()), torch.float32)
        self.lora = lora if lora is None or lora.targets else lora.model_copy(update={"targets": targets})
        self._files = files or PeftFiles()
        for name, module in self.modules.items():
            _require_bare(name, module, self._files.merge)
            module.eval()  # no dropout: the rollout and the update must see the same policy
            _require_trainable(name, module, self.lora)
            if self.lora is not None:
                module.requires_grad_(False)
                inject(name, module, self.lora)
            else:
                module.requires_grad_(True)
                mark_embeddings(_embeddings_of(module))
                move_modules([module], lambda part: part.float())
        self._store = ModuleCopies(self.modules) if self.lora is None else NamedAdapters(self.modules)
        self._active_copies: Mapping[str, nn.Module] = {}
        self._trained_copies: Mapping[str, nn.Module] = {}  # the modules of ``training``, if these are copies
        self._is_current = True
        self._initial: Path | None = None  # weights to load once the modules are sharded

    @property
    def trainable(self) -> list[nn.Parameter]:
        """Float32 master weights, in a fixed order."""
        modules = self._trained_copies or self.modules
        return [p for module in modules.values() for p in module.parameters() if p.requires_grad]

    @property
    def names(self) -> Collection[str]:
        """The names that ``using`` takes."""
        return {REFERENCE, *self._store.names}

    def store(self, name: str, *, decay: float = 0.0) -> None:
        """Stored adapters are further frozen adapters, stored full weights frozen copies of the modules."""
        require_name(name, decay)
        self._store.store(name, decay=decay)

    @property
    def active_copies(self) -> Mapping[str, nn.Module]:
        """The copies to call in place of the modules, by component name; empty outside ``using`` and for adapters."""
        return self._active_copies

    @property
    def is_current(self) -> bool:
        """Whether the modules have the trained weights: not inside ``using``."""
        return self._is_current

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """A context in which the modules have the stored adapters, or ``active_copies`` replace the modules.

        A reference that was never stored is the adapters switched off, or a copy of the full weights at its first use.

        Args:
            name: one of ``names``.

        Raises:
            ConfigError: no weights have that name.
        """
        with self._activated(self._store.using(name), is_current=False):
            yield

    @contextmanager
    def current(self) -> Iterator[None]:
        """A context inside ``using`` in which the modules have the trained weights again."""
        with self._activated(self._store.current(), is_current=True):
            yield

    @contextmanager
    def training(self, name: str, *, restart: bool = False) -> Iterator[None]:
        """A context in which further adapters, or copies of the modules, are trained in place of the policy's.

        Args:
            name: of the weights.
            restart: whether they become the reference.

        Raises ConfigError for a name that is not allowed, and for sharded weights.
        """
        require_name(name, 0.0)
        if any(layout_of(p) is not None for module in self.modules.values() for p in module.parameters()):
            raise ConfigError(
                "update.weight_sets needs complete weights in every process, and these are sharded (FSDP, ZeRO): start "
                "the processes without it"
            )
        before = self._trained_copies
        try:
            with (
                self._store.training(name, restart=restart) as self._trained_copies,
                self._activated(nullcontext(self._trained_copies), is_current=False),
            ):
                yield
        finally:
            self._trained_copies = before

    @contextmanager
    def _activated(
        self, context: AbstractContextManager[Mapping[str, nn.Module]], *, is_current: bool
    ) -> Iterator[None]:
        before = self._active_copies, self._is_current
        try:
            with context as self._active_copies:
                self._is_current = is_current
                yield
        finally:
            self._active_copies, self._is_current = before

    def shard(self, shard: Callable[[str, nn.Module], None]) -> None:
        """Shards every module and its copies.

        Args:
            shard: shards a module of that name in place.

        Raises:
            ConfigError: weights are quantized.
        """
        if quantized := [name for name, module in self.modules.items() if quantized_layers(module)]:
            raise ConfigError(
                f"{', '.join(quantized)}: quantized weights cannot be divided among processes (FSDP, ZeRO, context "
                "parallelism): start the processes without it, each with all weights, or load them without quantization"
            )
        if isinstance(self._store, ModuleCopies):
            self._store.shard(shard)
        for name, module in self.modules.items():
            shard(name, module)
        if self._initial is not None:
            self._load_modules(self.modules, self._initial)
            self._initial = None

    def load_initial(self, path: Path) -> None:
        """Loads initial weights from the files of another run or another library; named weights do not change.

        Args:
            path: adapters in any form that peft or diffusers reads; for full weights a folder that ``save`` wrote.

        Raises:
            CheckpointError: the files are missing, cannot be read, or are of another model.
            ConfigError: the adapters' settings do not fit the adapters of the file.
        """
        if self.lora is None:
            if any(map(has_deferred_moves, self.modules.values())):  # read once sharded, to load no more than a shard
                self._initial = path
            else:
                self._load_modules(self.modules, path)
            return
        tensors = read_adapter(path, self.modules, self.lora, adapter=ADAPTER, convert=self._files.convert)
        for name, module in self.modules.items():
            set_peft_model_state_dict(module, tensors[name], adapter_name=ADAPTER)

    def save(self, directory: Path) -> None:
        """Adapters in the format of ``files``, full weights as ``save_pretrained`` folders; others in subfolders.

        All processes write the shards of sharded modules.
        """
        if isinstance(self._store, ModuleCopies):
            self._save_modules(self.modules, directory)
            for name in self._store.names:
                self._save_modules(self._store.of(name), directory / STORED_FOLDER / name)
        elif self.lora is not None:
            self._files.save(self.modules, self.lora, directory, ADAPTER)
            for name in self._store.names:
                (directory / STORED_FOLDER / name).mkdir(parents=True, exist_ok=True)
                self._files.save(self.modules, self.lora, directory / STORED_FOLDER / name, self._store.key(name))

    def load(self, directory: Path) -> None:
        """Restores the weights that ``save`` wrote. Raises CheckpointError if files are missing or are of another
        model."""
        folders = {path.name: path for path in sorted((directory / STORED_FOLDER).glob("*")) if path.is_dir()}
        if isinstance(self._store, ModuleCopies):
            self._load_modules(self.modules, directory)
            if (directory / REFERENCE).is_dir():  # its place in older checkpoints, without other named weights
                folders.setdefault(REFERENCE, directory / REFERENCE)
            for name, folder in folders.items():
                self._load_modules(self._store.of(name), folder)
            return
        assert self.lora is not None
        self._files.load(self.modules, self.lora, directory, ADAPTER)
        for name, folder in folders.items():
            if name not in self._store.names:
                self._store.add(name)
            self._files.load(self.modules, self.lora, folder, self._store.key(name))

    def _save_modules(self, modules: Mapping[str, nn.Module], directory: Path) -> None:
        for name, module in modules.items():
            _save_module(module, directory / name)

    def _load_modules(self, modules: Mapping[str, nn.Module], directory: Path) -> None:
        for name, module in modules.items():
            _load_module(module, directory / name)


def _embeddings_of(module: nn.Module) -> list[nn.Module | None]:
    """The embeddings of a module, and its output head."""
    head = module.get_output_embeddings() if isinstance(module, PreTrainedModel) else None
    return [*(part for part in module.modules() if isinstance(part, nn.Embedding)), head]


def _require_bare(name: str, module: nn.Module, merge: str) -> None:
    if any(isinstance(layer, BaseTunerLayer) for layer in module.modules()):
        raise ConfigError(
            f"{name} already carries adapters, which the reference would lose; merge them into its weights first: "
            f"{merge}"
        )


def _require_trainable(name: str, module: nn.Module, lora: LoraSettings | None) -> None:
    """Prepares quantized layers for adapters. Raises ConfigError if they cannot be trained so, or without adapters."""
    if lora is None and (layers := quantized_layers(module)):
        raise ConfigError(
            f"{name} has {len(layers)} layers with quantized weights, which cannot be trained in full: set "
            "policy.lora, for example {rank: 32, alpha: 64}, or load the weights without quantization"
        )
    prepare_quantized(name, module)


def inject(name: str, module: nn.Module, lora: LoraSettings) -> None:
    """Adds fresh adapters to a module in place. Raises ConfigError if one of their targets matches no layer."""
    config, paths = lora_config(lora), dict(module.named_modules())
    endings = () if lora.targets is None or isinstance(lora.targets, str) else lora.targets
    unmatched = [ending for ending in endings if not any(f".{path}".endswith(f".{ending}") for path in paths)]
    try:
        if unmatched:
            raise ValueError("endings of no module")
        inject_adapter_in_model(config, module, adapter_name=ADAPTER)
    except ValueError as error:
        linear = sorted({path.rsplit(".", 1)[-1] for path, part in paths.items() if isinstance(part, nn.Linear)})
        targets = lora.targets if isinstance(lora.targets, str) else ", ".join(unmatched or endings)
        raise ConfigError(
            f"policy.lora.targets: {targets} match no module of {name} ({type(module).__name__}); "
            f"its linear layers end in: {', '.join(linear)}"
        ) from error
    if getattr(module, "peft_config", None) is None:
        object.__setattr__(module, "peft_config", {ADAPTER: config})
    for path, parameter in module.named_parameters():
        if ".lora_" in path:
            parameter.data = parameter.data.float()  # small steps are lost in bfloat16
            parameter.requires_grad_(True)


def _save_module(module: nn.Module, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if save_module(module, folder):
        return
    save_pretrained = getattr(module, "save_pretrained", None)
    if callable(save_pretrained):
        save_pretrained(folder)
    else:
        save_file(
            {k: v.detach().cpu().contiguous() for k, v in module.state_dict().items()}, folder / "model.safetensors"
        )


def _load_module(module: nn.Module, folder: Path) -> None:
    if is_sharded(folder):
        load_module(module, folder)
        return
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no .safetensors file; was the checkpoint made with LoRA?")
    if isinstance(module, PreTrainedModel):  # its files rename keys and omit tied weights
        tensors = type(module).from_pretrained(folder, dtype=module.dtype).state_dict()
    else:
        tensors = {key: value for file in files for key, value in read_tensors(file)[0].items()}
    state = module.state_dict()
    require_same_shapes({k: v.shape for k, v in state.items()}, {k: v.shape for k, v in tensors.items()}, folder)
    module.load_state_dict(dict(tensors))
