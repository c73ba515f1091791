"""What is trained of a model, and where its frozen reference and its files are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from peft import inject_adapter_in_model, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.layouts import is_waiting, place
from mmgrpo.shards import is_sharded, load_module, save_module
from mmgrpo.values import REFERENCE

from .adapter_files import AdapterFiles, lora_config, require_same_shapes
from .adapters import read_adapter, read_tensors
from .kept import ADAPTER, Adapters, Copies, require_name
from .lora import LoraSettings

KEPT = "kept"


class Weights:
    """The trained modules of a policy, frozen but for what is trained, and the weights that are kept beside them.

    Attributes:
        modules: the modules by component name.
        lora: the adapters' settings, if adapters are trained.
        dtype: of the modules as they were given; those that are trained in full are float32 from now on.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        lora: LoraSettings | None,
        targets: str | Sequence[str],
        files: AdapterFiles,
    ) -> None:
        """Freezes what is not trained, in place, and adds the adapters.

        Args:
            modules: the modules by component name.
            lora: the adapters' settings; None trains every weight.
            targets: what carries adapters where the settings do not say.
            files: how adapters are kept on disk.
        """
        self.modules = dict(modules)
        self.dtype = next((p.dtype for module in self.modules.values() for p in module.parameters()), torch.float32)
        self.lora = lora if lora is None or lora.targets else lora.model_copy(update={"targets": targets})
        self._files = files
        for name, module in self.modules.items():
            _require_bare(name, module, files.merge)
            module.eval()  # no dropout: the rollout and the update must see the same policy
            if self.lora is not None:
                module.requires_grad_(False)
                _inject(name, module, self.lora)
            else:
                module.requires_grad_(True)
                place([module], lambda one: one.float())
        self._kept = Copies(self.modules) if self.lora is None else Adapters(self.modules)
        self._stand_ins: Mapping[str, nn.Module] = {}
        self._begin: Path | None = None  # the weights to start from, once these lie in parts

    @property
    def trainable(self) -> list[nn.Parameter]:
        """Float32 master weights, in a fixed order."""
        return [p for module in self.modules.values() for p in module.parameters() if p.requires_grad]

    @property
    def kept(self) -> Collection[str]:
        """The names that ``using`` takes."""
        return {REFERENCE, *self._kept.names}

    def keep(self, name: str, *, decay: float = 0.0) -> None:
        """Keeps the weights of now under a name. Raises ConfigError for a name or a decay that cannot be."""
        require_name(name, decay)
        self._kept.keep(name, decay=decay)

    @property
    def stand_ins(self) -> Mapping[str, nn.Module]:
        """The copies that stand in for modules now, by component name; those within ``using``, if any."""
        return self._stand_ins

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """Within it the modules have the kept weights, or ``stand_ins`` stand in for them.

        The reference that was never kept is the adapters switched off, or full weights as they were when first asked
        for. Raises ConfigError for a name under which nothing is kept.
        """
        with self._standing_in(self._kept.using(name)):
            yield

    @contextmanager
    def trained(self) -> Iterator[None]:
        """Within ``using``, the modules have the trained weights again."""
        with self._standing_in(self._kept.trained()):
            yield

    @contextmanager
    def _standing_in(self, context: AbstractContextManager[Mapping[str, nn.Module]]) -> Iterator[None]:
        before = self._stand_ins
        try:
            with context as self._stand_ins:
                yield
        finally:
            self._stand_ins = before

    def shard(self, shard: Callable[[str, nn.Module], None]) -> None:
        """Has every module sharded, and what is kept of it from now on.

        Args:
            shard: shards one of that name in place.
        """
        if isinstance(self._kept, Copies):
            self._kept.shard(shard)
        for name, module in self.modules.items():
            shard(name, module)
        if self._begin is not None:
            self._load_modules(self.modules, self._begin)
            self._begin = None

    def begin_from(self, path: Path) -> None:
        """Starts from the weights that another run, or another library, has left; kept weights stay this policy's own.

        Args:
            path: adapters in any form that peft or diffusers reads; for whole weights a folder that ``save`` wrote.

        Raises:
            CheckpointError: the files are missing, cannot be read, or are of another model.
            ConfigError: the settings of the adapters cannot hold the file's.
        """
        if self.lora is None:
            if any(map(is_waiting, self.modules.values())):  # for parts, into which no more than fits them is read
                self._begin = path
            else:
                self._load_modules(self.modules, path)
            return
        tensors = read_adapter(path, self.modules, self.lora, adapter=ADAPTER, convert=self._files.convert)
        for name, module in self.modules.items():
            set_peft_model_state_dict(module, tensors[name], adapter_name=ADAPTER)

    def save(self, directory: Path) -> None:
        """Adapters in the form of ``files``, full weights as ``save_pretrained`` folders; what is kept in folders.

        Modules that lie in parts are written as they lie, by all processes.
        """
        if isinstance(self._kept, Copies):
            self._save_modules(self.modules, directory)
            for name in self._kept.names:
                self._save_modules(self._kept.of(name), directory / KEPT / name)
        elif self.lora is not None:
            self._files.save(self.modules, self.lora, directory, ADAPTER)
            for name in self._kept.names:
                (directory / KEPT / name).mkdir(parents=True, exist_ok=True)
                self._files.save(self.modules, self.lora, directory / KEPT / name, self._kept.key(name))

    def load(self, directory: Path) -> None:
        """Restores what ``save`` wrote. Raises CheckpointError if files are missing or are of another model."""
        folders = {path.name: path for path in sorted((directory / KEPT).glob("*")) if path.is_dir()}
        if isinstance(self._kept, Copies):
            self._load_modules(self.modules, directory)
            if (directory / REFERENCE).is_dir():  # where checkpoints had it before there were other kept weights
                folders.setdefault(REFERENCE, directory / REFERENCE)
            for name, folder in folders.items():
                self._load_modules(self._kept.of(name), folder)
            return
        assert self.lora is not None
        self._files.load(self.modules, self.lora, directory, ADAPTER)
        for name, folder in folders.items():
            if name not in self._kept.names:
                self._kept.add(name)
            self._files.load(self.modules, self.lora, folder, self._kept.key(name))

    def _save_modules(self, modules: Mapping[str, nn.Module], directory: Path) -> None:
        for name, module in modules.items():
            _save_module(module, directory / name)

    def _load_modules(self, modules: Mapping[str, nn.Module], directory: Path) -> None:
        for name, module in modules.items():
            _load_module(module, directory / name)


def _require_bare(name: str, module: nn.Module, merge: str) -> None:
    if any(isinstance(layer, BaseTunerLayer) for layer in module.modules()):
        raise ConfigError(
            f"{name} already carries adapters, which the reference would lose; make them part of its weights first: "
            f"{merge}"
        )


def _inject(name: str, module: nn.Module, lora: LoraSettings) -> None:
    config = lora_config(lora)
    try:
        inject_adapter_in_model(config, module, adapter_name=ADAPTER)
    except ValueError as error:
        linear = sorted({path.rsplit(".", 1)[-1] for path, m in module.named_modules() if isinstance(m, nn.Linear)})
        raise ConfigError(
            f"LoRA targets {lora.targets} match no module of {name} ({type(module).__name__}); "
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
    if isinstance(module, PreTrainedModel):  # whose files have names of their own, and leave out what is tied
        tensors = type(module).from_pretrained(folder, dtype=module.dtype).state_dict()
    else:
        tensors = {key: value for file in files for key, value in read_tensors(file)[0].items()}
    state = module.state_dict()
    require_same_shapes({k: v.shape for k, v in state.items()}, {k: v.shape for k, v in tensors.items()}, folder)
    module.load_state_dict(dict(tensors))
