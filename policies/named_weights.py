"""Storage of weights under names next to the trained ones: the reference, averages, snapshots."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from mmgrpo.errors import ConfigError
from mmgrpo.layouts import blocks_of, defer_move, layout_of, local_part, local_slice, run_deferred_moves
from mmgrpo.values import OLD, REFERENCE

ADAPTER = "default"
LAST_FACTORS = ("lora_B", "lora_embedding_A")  # the factors that are 0 in adapters that add nothing
MAGNITUDE = "lora_magnitude_vector"  # equals the magnitude of the base layer in adapters that add nothing
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class WeightStore(Protocol):
    """A way to store weights under names."""

    @property
    def names(self) -> Collection[str]:
        """The names that have stored weights."""
        ...

    def store(self, name: str, *, decay: float) -> None:
        """stored = decay * stored + (1 - decay) * current; a new name starts as the current weights."""
        ...

    def using(self, name: str) -> AbstractContextManager[Mapping[str, nn.Module]]:
        """A context in which stored weights are active; gives the modules to call in place of the trained ones, if
        any."""
        ...

    def current(self) -> AbstractContextManager[Mapping[str, nn.Module]]:
        """A context inside ``using`` in which the trained weights are active again."""
        ...

    def training(self, name: str, *, restart: bool) -> AbstractContextManager[Mapping[str, nn.Module]]:
        """A context in which weights under a name are the trained ones, after a restart from the reference; gives the
        modules to call in place of others, if any."""
        ...


def require_name(name: str, decay: float) -> None:
    """Raises ConfigError for a name or a decay that is not allowed."""
    if name == OLD:
        raise ConfigError(f"weights cannot be stored under {OLD!r}, the name of the policy that sampled: use another")
    if not NAME.fullmatch(name) or ADAPTER in name:
        raise ConfigError(
            f"names of stored weights have letters, digits, _ and -, and do not contain {ADAPTER!r}; got {name!r}"
        )
    if not 0 <= decay <= 1:
        raise ConfigError(f"the decay of stored weights must be in [0, 1], got {decay}")


def require_stored(name: str, names: Collection[str]) -> None:
    """Raises ConfigError for a name without stored weights."""
    if name not in names:
        raise ConfigError(f"no weights are stored under {name!r}; stored are {', '.join(sorted(names))}")


class ModuleCopies:
    """Stores weights as frozen copies of the trained modules.

    Attributes:
        modules: the trained modules by component name.
        copies: the copies by name; the reference is copied at its first use.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        """Starts without copies.

        Args:
            modules: the trained modules by component name.
        """
        self.modules = modules
        self.copies: dict[str, Mapping[str, nn.Module]] = {}
        self._trained: Mapping[str, nn.Module] = {}  # the copies that are trained in place of the modules
        self._copy: Callable[[str], nn.Module] = lambda name: _frozen(modules[name])

    def shard(self, shard: Callable[[str, nn.Module], None]) -> None:
        """Shards existing and future copies; must be called before the modules are sharded.

        Args:
            shard: shards a module of that name in place.
        """
        for copies in self.copies.values():
            for name, module in copies.items():
                shard(name, module)
        blanks = {name: _blank(module) for name, module in self.modules.items()}

        def sharded_copy(name: str) -> nn.Module:
            module = _filled(blanks[name], self.modules[name])
            shard(name, module)
            for block in blocks_of(module):
                run_deferred_moves(block)
            for target, source in zip(module.parameters(), self.modules[name].parameters(), strict=True):
                local_part(target).copy_(_local_entries(source, target))
            return module

        self._copy = sharded_copy

    @property
    def names(self) -> Collection[str]:
        """The names that have copies."""
        return self.copies.keys()

    def of(self, name: str) -> Mapping[str, nn.Module]:
        """The copies under a name, made from the modules if there are none."""
        if name not in self.copies:
            self.copies[name] = {key: self._copy(key) for key in self.modules}
        return self.copies[name]

    @contextmanager
    def training(self, name: str, *, restart: bool) -> Iterator[Mapping[str, nn.Module]]:
        """Gives the copies to train and to call in place of the modules."""
        before, self._trained = self._trained, self.of(name)
        if restart:
            for key, module in self.of(REFERENCE).items():
                self._trained[key].load_state_dict(module.state_dict())
        for module in self._trained.values():
            module.requires_grad_(True)
        try:
            yield self._trained
        finally:
            for module in self._trained.values():
                module.requires_grad_(False)
            self._trained = before

    @torch.no_grad()
    def store(self, name: str, *, decay: float) -> None:
        """As ``WeightStore.store``; buffers are copied from the current modules."""
        decay = decay if name in self.copies else 0.0
        for key, stored in self.of(name).items():
            current = self._trained.get(key, self.modules[key])
            for target, source in zip(stored.parameters(), current.parameters(), strict=True):
                _blend(local_part(target), local_part(source), decay)
            for target, source in zip(stored.buffers(), current.buffers(), strict=True):
                target.copy_(source)

    @contextmanager
    def using(self, name: str) -> Iterator[Mapping[str, nn.Module]]:
        """Gives the copies to call in place of the modules."""
        require_stored(name, {*self.names, REFERENCE})
        yield self.of(name)

    def current(self) -> AbstractContextManager[Mapping[str, nn.Module]]:
        """Gives no copies, except within ``training``: the modules always have the trained weights."""
        return nullcontext(self._trained)


class NamedAdapters:
    """Stores weights as further frozen adapters on the layers that carry the trained ones.

    Attributes:
        modules: the modules with adapters, by component name.
        names: the names that have adapters; at first the reference has none: it is the modules without adapters.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        """Starts without stored adapters.

        Args:
            modules: modules with fresh adapters, by component name.
        """
        self.modules = modules
        self.names: set[str] = set()
        self._trained = ADAPTER  # peft's name of the adapters that are trained
        self._layers = [layer for module in modules.values() for layer in _tuned(module)]
        self._magnitude = {
            id(parameter): parameter.detach().clone()
            for parameter, attribute in self._parameters(ADAPTER)
            if attribute == MAGNITUDE
        }

    def key(self, name: str) -> str:
        """The adapter name in peft, which is no substring of any other key or module path."""
        return f"kept:{name}:"

    @torch.no_grad()
    def store(self, name: str, *, decay: float) -> None:
        """As ``WeightStore.store``, factor by factor; a new reference starts as adapters that add nothing."""
        is_new = name not in self.names
        if is_new:
            self.add(name)
        if is_new and name == REFERENCE:
            self._clear(name)  # what adds nothing is the share of the reference that stays
        if is_new and name != REFERENCE:
            decay = 0.0
        pairs = zip(self._parameters(self.key(name)), self._parameters(self._trained), strict=True)
        for (target, _), (source, _) in pairs:
            _blend(target, source, decay)

    @torch.no_grad()
    def _restart(self, name: str) -> None:
        """Gives adapters the weights of the reference's; if it has none, they add nothing, with the policy's first
        factors."""
        source = self.key(REFERENCE) if REFERENCE in self.names else ADAPTER
        for (target, _), (current, _) in zip(self._parameters(self.key(name)), self._parameters(source), strict=True):
            target.copy_(current)
        if source == ADAPTER:
            self._clear(name)

    def _clear(self, name: str) -> None:
        """Makes adapters add nothing."""
        for (target, attribute), (source, _) in zip(
            self._parameters(self.key(name)), self._parameters(ADAPTER), strict=True
        ):
            if attribute in LAST_FACTORS:
                target.zero_()
            if attribute == MAGNITUDE:
                target.copy_(self._magnitude[id(source)])

    def add(self, name: str) -> None:
        """Adds frozen adapters with the weights of the policy's adapters."""
        key = self.key(name)
        for layer in self._layers:
            for container in (*vars(layer).values(), *layer.children()):
                if isinstance(container, (dict, nn.ModuleDict, nn.ParameterDict)) and ADAPTER in container:
                    container[key] = copy.deepcopy(container[ADAPTER])
        for module in self.modules.values():
            config: Any = getattr(module, "peft_config", None)
            config[key] = config[ADAPTER]
        for parameter, _ in self._parameters(key):
            parameter.requires_grad_(False)
        self.names.add(name)

    @contextmanager
    def using(self, name: str) -> Iterator[Mapping[str, nn.Module]]:
        """Gives no copies: inside it the modules have the stored adapters, or none."""
        require_stored(name, {*self.names, REFERENCE})
        with self._active(self.key(name) if name in self.names else None):
            yield {}

    @contextmanager
    def current(self) -> Iterator[Mapping[str, nn.Module]]:
        """Gives no copies: inside it the modules have the trained adapters."""
        with self._active(self._trained):
            yield {}

    @contextmanager
    def training(self, name: str, *, restart: bool) -> Iterator[Mapping[str, nn.Module]]:
        """Gives no copies: inside it further adapters are trained in place of the policy's; after a restart they add
        nothing, or what an updated reference adds."""
        if name not in self.names:
            self.add(name)
        if restart:
            self._restart(name)
        before, self._trained = self._trained, self.key(name)
        try:
            with self._active(self._trained):
                yield {}
        finally:
            self._trained = before

    @contextmanager
    def _active(self, active: str | None) -> Iterator[None]:
        """A context in which layers have one set of adapters, by peft's name, or none."""
        keys = [ADAPTER, *map(self.key, self.names)]
        before = [(parameter, parameter.requires_grad) for key in keys for parameter, _ in self._parameters(key)]
        states = [(layer.active_adapters, layer.disable_adapters) for layer in self._layers]
        for layer in self._layers:
            layer.enable_adapters(enabled=active is not None)
            if active is not None:
                layer.set_adapter([active], inference_mode=active != self._trained)
        try:
            yield
        finally:
            for layer, (active, disabled) in zip(self._layers, states, strict=True):
                layer.set_adapter(active, inference_mode=True)
                layer.enable_adapters(enabled=not disabled)
            for parameter, requires_grad in before:
                parameter.requires_grad_(requires_grad)

    def _parameters(self, key: str) -> list[tuple[nn.Parameter, str]]:
        """The parameters of a set of adapters in a fixed order, each with the peft attribute that contains it."""
        return [
            (parameter, attribute)
            for layer in self._layers
            for attribute in dict.fromkeys(layer.adapter_layer_names)  # DoRA lists its own twice
            if key in getattr(layer, attribute)
            for parameter in _parameters_of(getattr(layer, attribute)[key])
        ]


def _tuned(module: nn.Module) -> list[Any]:
    return [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer)]


def _parameters_of(item: nn.Module | nn.Parameter) -> list[nn.Parameter]:
    return [item] if isinstance(item, nn.Parameter) else list(item.parameters())


def _blend(stored: torch.Tensor, current: torch.Tensor, decay: float) -> None:
    if decay == 0:
        stored.copy_(current)
    else:
        stored.lerp_(current.to(stored.dtype), 1 - decay)


def _frozen(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).requires_grad_(False).eval()


def _blank(module: nn.Module) -> nn.Module:
    """A frozen float32 copy on the meta device; tied parameters stay tied."""
    blanks = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False) for p in module.parameters()}
    return copy.deepcopy(module, dict(blanks)).eval().float()


def _local_entries(value: Tensor, other: Tensor) -> Tensor:
    """The entries of a tensor, sharded or not, that match this process's shard of another."""
    layout = layout_of(other)
    return local_part(value) if layout is None or layout_of(value) is not None else local_slice(value.detach(), layout)


def _filled(blank: nn.Module, module: nn.Module) -> nn.Module:
    """A copy of a blank with memory for its weights on the module's device, block by block as each block is moved;
    buffers are copied from the module."""
    device = next(module.parameters()).device
    filled = copy.deepcopy(blank)
    allocated: dict[nn.Parameter, nn.Parameter] = {}

    def allocate(parts: Iterable[nn.Module]) -> None:
        for part in parts:
            for name, parameter in part._parameters.items():
                if parameter is None or not parameter.is_meta:
                    continue
                if parameter not in allocated:
                    allocated[parameter] = nn.Parameter(torch.empty_like(parameter, device=device), requires_grad=False)
                part._parameters[name] = allocated[parameter]

    blocks = blocks_of(filled)
    in_blocks = {part for block in blocks for part in block.modules()}
    allocate(part for part in filled.modules() if part not in in_blocks)
    for block in blocks:
        defer_move(block, lambda block: allocate(block.modules()))
    for target, source in zip(filled.buffers(), module.buffers(), strict=True):
        target.data = source.clone()
    return filled
