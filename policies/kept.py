"""Weights that are kept under names beside the trained ones: the reference, averages, snapshots."""

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
from mmgrpo.layouts import arrive, blocks_of, layout_of, own_part, part_of, wait
from mmgrpo.values import OLD, REFERENCE

ADAPTER = "default"
LAST_FACTORS = ("lora_B", "lora_embedding_A")  # which are 0 in adapters that add nothing
MAGNITUDE = "lora_magnitude_vector"  # which is the layer's own in those
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Kept(Protocol):
    """Where kept weights are."""

    @property
    def names(self) -> Collection[str]:
        """Those that hold weights of their own."""
        ...

    def keep(self, name: str, *, decay: float) -> None:
        """kept = decay * kept + (1 - decay) * now; a new name begins as the weights of now."""
        ...

    def using(self, name: str) -> AbstractContextManager[Mapping[str, nn.Module]]:
        """A context of the kept weights; gives the modules that stand in for the trained ones, if others do."""
        ...

    def trained(self) -> AbstractContextManager[Mapping[str, nn.Module]]:
        """Within a context of kept weights, one of the trained ones again."""
        ...


def require_name(name: str, decay: float) -> None:
    """Raises ConfigError for a name or a decay that cannot be."""
    if name == OLD:
        raise ConfigError(f"weights cannot be kept under {OLD!r}: that is the policy that sampled")
    if not NAME.fullmatch(name) or ADAPTER in name:
        raise ConfigError(f"kept weights are named by letters, digits, _ and -, and not {ADAPTER}; got {name!r}")
    if not 0 <= decay <= 1:
        raise ConfigError(f"the decay of kept weights lies in [0, 1], got {decay}")


def require_kept(name: str, names: Collection[str]) -> None:
    """Raises ConfigError for a name under which nothing is kept."""
    if name not in names:
        raise ConfigError(f"no weights are kept under {name!r}; kept are {', '.join(sorted(names))}")


class Copies:
    """Kept weights as frozen copies of whole modules.

    Attributes:
        modules: what is trained, by component name.
        copies: the copies, by name; the reference is made at its first use.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        """Nothing is kept yet.

        Args:
            modules: what is trained, by component name.
        """
        self.modules = modules
        self.copies: dict[str, Mapping[str, nn.Module]] = {}
        self._made: Callable[[str], nn.Module] = lambda name: _frozen(modules[name])

    def shard(self, shard: Callable[[str, nn.Module], None]) -> None:
        """Has the copies that are there sharded, and those to come; to be called before the modules are.

        Args:
            shard: shards a module of that name in place.
        """
        for copies in self.copies.values():
            for name, module in copies.items():
                shard(name, module)
        blanks = {name: _blank(module) for name, module in self.modules.items()}

        def made(name: str) -> nn.Module:
            module = _filled(blanks[name], self.modules[name])
            shard(name, module)
            for block in blocks_of(module):
                arrive(block)
            for mine, trained in zip(module.parameters(), self.modules[name].parameters(), strict=True):
                own_part(mine).copy_(_as_parted(trained, mine))
            return module

        self._made = made

    @property
    def names(self) -> Collection[str]:
        """Those that hold copies."""
        return self.copies.keys()

    def of(self, name: str) -> Mapping[str, nn.Module]:
        """The copies under a name, made of the weights of now where there are none."""
        if name not in self.copies:
            self.copies[name] = {key: self._made(key) for key in self.modules}
        return self.copies[name]

    @torch.no_grad()
    def keep(self, name: str, *, decay: float) -> None:
        """As ``Kept`` has it; buffers are those of now."""
        for key, kept in self.of(name).items():
            now = self.modules[key]
            for mine, trained in zip(kept.parameters(), now.parameters(), strict=True):
                _blend(own_part(mine), own_part(trained), decay)
            for mine, trained in zip(kept.buffers(), now.buffers(), strict=True):
                mine.copy_(trained)

    @contextmanager
    def using(self, name: str) -> Iterator[Mapping[str, nn.Module]]:
        """Gives the copies that stand in for the modules."""
        require_kept(name, {*self.names, REFERENCE})
        yield self.of(name)

    def trained(self) -> AbstractContextManager[Mapping[str, nn.Module]]:
        """Gives none: the modules are as they were."""
        return nullcontext({})


class Adapters:
    """Kept weights as further frozen adapters on the layers of the trained ones.

    Attributes:
        modules: what carries the adapters, by component name.
        names: those that have adapters; the reference has none at first: it is the modules without any.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        """Nothing is kept yet.

        Args:
            modules: what carries fresh adapters, by component name.
        """
        self.modules = modules
        self.names: set[str] = set()
        self._layers = [layer for module in modules.values() for layer in _tuned(module)]
        self._magnitude = {
            id(parameter): parameter.detach().clone()
            for parameter, attribute in self._parameters(ADAPTER)
            if attribute == MAGNITUDE
        }

    def key(self, name: str) -> str:
        """What peft knows the adapters by, which is no part of any other key or path."""
        return f"kept:{name}:"

    @torch.no_grad()
    def keep(self, name: str, *, decay: float) -> None:
        """As ``Kept`` has it, factor by factor; the reference that has no adapters is one that adds nothing."""
        is_new = name not in self.names
        if is_new:
            self.add(name)
        pairs = zip(self._parameters(self.key(name)), self._parameters(ADAPTER), strict=True)
        for (mine, attribute), (trained, _) in pairs:
            if is_new and name == REFERENCE and attribute in LAST_FACTORS:
                mine.zero_()
            if is_new and name == REFERENCE and attribute == MAGNITUDE:
                mine.copy_(self._magnitude[id(trained)])
            _blend(mine, trained, decay)

    def add(self, name: str) -> None:
        """Adapters that hold the weights of now."""
        key = self.key(name)
        for layer in self._layers:
            for held in (*vars(layer).values(), *layer.children()):
                if isinstance(held, (dict, nn.ModuleDict, nn.ParameterDict)) and ADAPTER in held:
                    held[key] = copy.deepcopy(held[ADAPTER])
        for module in self.modules.values():
            config: Any = getattr(module, "peft_config", None)
            config[key] = config[ADAPTER]
        for mine, _ in self._parameters(key):
            mine.requires_grad_(False)
        self.names.add(name)

    @contextmanager
    def using(self, name: str) -> Iterator[Mapping[str, nn.Module]]:
        """Gives no stand-ins: within it the modules themselves have the kept adapters, or none."""
        require_kept(name, {*self.names, REFERENCE})
        with self._active(self.key(name) if name in self.names else None):
            yield {}

    @contextmanager
    def trained(self) -> Iterator[Mapping[str, nn.Module]]:
        """Gives no stand-ins: within it the modules have the trained adapters."""
        with self._active(ADAPTER):
            yield {}

    @contextmanager
    def _active(self, active: str | None) -> Iterator[None]:
        """Within it layers have one set of adapters, by peft's name, or none."""
        keys = [ADAPTER, *map(self.key, self.names)]
        before = [(parameter, parameter.requires_grad) for key in keys for parameter, _ in self._parameters(key)]
        states = [(layer.active_adapters, layer.disable_adapters) for layer in self._layers]
        for layer in self._layers:
            layer.enable_adapters(enabled=active is not None)
            if active is not None:
                layer.set_adapter([active], inference_mode=active != ADAPTER)
        try:
            yield
        finally:
            for layer, (active, disabled) in zip(self._layers, states, strict=True):
                layer.set_adapter(active, inference_mode=True)
                layer.enable_adapters(enabled=not disabled)
            for parameter, requires_grad in before:
                parameter.requires_grad_(requires_grad)

    def _parameters(self, key: str) -> list[tuple[nn.Parameter, str]]:
        """The parameters of a set of adapters in a fixed order, and what peft calls those of their kind."""
        return [
            (parameter, attribute)
            for layer in self._layers
            for attribute in dict.fromkeys(layer.adapter_layer_names)  # DoRA names its own again
            if key in getattr(layer, attribute)
            for parameter in _parameters_of(getattr(layer, attribute)[key])
        ]


def _tuned(module: nn.Module) -> list[Any]:
    return [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer)]


def _parameters_of(held: nn.Module | nn.Parameter) -> list[nn.Parameter]:
    return [held] if isinstance(held, nn.Parameter) else list(held.parameters())


def _blend(kept: torch.Tensor, now: torch.Tensor, decay: float) -> None:
    if decay == 0:
        kept.copy_(now)
    else:
        kept.lerp_(now.to(kept.dtype), 1 - decay)


def _frozen(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).requires_grad_(False).eval()


def _blank(module: nn.Module) -> nn.Module:
    """A frozen copy without weights, of float32 as what is trained; parameters that are one stay one."""
    blanks = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False) for p in module.parameters()}
    return copy.deepcopy(module, dict(blanks)).eval().float()


def _as_parted(value: Tensor, other: Tensor) -> Tensor:
    """What goes with the part of another, of a parameter that may be whole for a while."""
    layout = layout_of(other)
    return own_part(value) if layout is None or layout_of(value) is not None else part_of(value.detach(), layout)


def _filled(blank: nn.Module, module: nn.Module) -> nn.Module:
    """A blank with room for its weights, where the module has its own, in blocks once they arrive; buffers as now."""
    device = next(module.parameters()).device
    filled = copy.deepcopy(blank)
    room: dict[nn.Parameter, nn.Parameter] = {}

    def give_room(parts: Iterable[nn.Module]) -> None:
        for part in parts:
            for name, one in part._parameters.items():
                if one is None or not one.is_meta:
                    continue
                if one not in room:
                    room[one] = nn.Parameter(torch.empty_like(one, device=device), requires_grad=False)
                part._parameters[name] = room[one]

    blocks = blocks_of(filled)
    within = {part for block in blocks for part in block.modules()}
    give_room(part for part in filled.modules() if part not in within)
    for block in blocks:
        wait(block, lambda block: give_room(block.modules()))
    for mine, now in zip(filled.buffers(), module.buffers(), strict=True):
        mine.data = now.clone()
    return filled
