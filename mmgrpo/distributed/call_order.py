"""One order for the calls of sharded modules, although each process has a different number of calls to make.

Calling a sharded module, forward or backward, gathers its weights, and every process has to take part. Processes hold
different rows, so one may have more calls to make than another. Before each call a process therefore announces the call
and waits until it is next; if another process's call comes first, it makes an empty call of the same kind and discards
the result. A process without calls makes empty ones until all processes wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather, gather_object
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from mmgrpo.differentiating import join
from mmgrpo.distributed.parameter_shards import register_gathered_state
from mmgrpo.layouts import layout_of
from mmgrpo.policy import Arguments
from mmgrpo.shards import pieces_of, save_with, write_shard


class _Kind(IntEnum):
    WAIT = 0
    FORWARD = 1
    GRADIENT = 2  # a forward that will be differentiated
    BACKWARD = 3  # of all such forwards since the last backward
    STATE = 4  # gather a module's state dict
    FILES = 5  # write a module's shards


_Call = tuple[int, int]
"""A kind, and the index of the module."""

_AUTOCAST = (None, torch.bfloat16, torch.float16)
"""Autocast dtypes of a call; None: without autocast."""


@dataclass(frozen=True, slots=True)
class _Announced:
    """The call that a process makes next.

    Attributes:
        call: kind and module.
        autocast: its autocast dtype, in which empty calls are made too.
        lacks: indices of the modules without arguments for empty calls on this process.
    """

    call: _Call
    autocast: torch.dtype | None
    lacks: frozenset[int]


@dataclass(slots=True, weakref_slot=True)
class _SharedModule:
    """A sharded module, the module it is saved with, and the arguments of its empty calls (from ``make_arguments``, or
    those of its last call).

    While it is gathered, its calls involve no other process.
    """

    module: nn.Module
    within: nn.Module
    make_arguments: Callable[[], Arguments] | None
    last: Arguments | None = None
    is_gathered: bool = False

    @property
    def has_arguments(self) -> bool:
        return self.make_arguments is not None or self.last is not None

    @property
    def arguments(self) -> Arguments:
        arguments = self.last if self.make_arguments is None else self.make_arguments()
        assert arguments is not None
        return arguments


@dataclass(slots=True)
class CallOrder:
    """The order in which the processes call their sharded modules.

    Attributes:
        accelerator: Accelerate's view of the processes.
    """

    accelerator: Accelerator
    _modules: list[ref[_SharedModule]] = field(default_factory=list)  # kept alive by the hooks of their modules
    _outputs: list[Tensor] = field(default_factory=list)  # of empty forwards that will be differentiated
    _is_empty: bool = False  # whether this process is making an empty call

    def add(
        self,
        module: nn.Module,
        empty: Callable[[], Arguments] | None = None,
        *,
        gathers_state: bool = False,
        within: nn.Module | None = None,
    ) -> None:
        """Orders the calls of a module from now on; every process adds its modules in the same order.

        Args:
            module: called as a module, and differentiated through ``differentiating`` only.
            empty: makes the arguments of empty calls; None: those of the last call.
            gathers_state: whether its ``state_dict`` is gathered from all processes, for the process that calls it; it
                then loads full tensors, and all processes write its files.
            within: the module that contains it and is saved as one; None: itself.
        """
        if not self._modules:
            join(self._before_backward)
        index, shared = len(self._modules), _SharedModule(module, within or module, empty)
        self._modules.append(ref(shared))

        def before_call(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._is_empty:
                if empty is None:
                    shared.last = tree_map_only(Tensor, _detached_like, (args, kwargs))
                if torch.is_grad_enabled() or not shared.is_gathered:
                    self._wait_until_next((_Kind.GRADIENT if torch.is_grad_enabled() else _Kind.FORWARD, index))

        module.register_forward_pre_hook(before_call, prepend=True, with_kwargs=True)
        if gathers_state:
            before = partial(self._wait_until_next, (_Kind.STATE, index))
            register_gathered_state(module, before, keeps=lambda: not self._is_empty)
            save_with(shared.within, partial(self._save, index))

    @contextmanager
    def without(self, modules: Collection[nn.Module]) -> Iterator[None]:
        """Context in which calls of these modules are not ordered, unless they will be differentiated.

        Args:
            modules: shared modules that every process has gathered.
        """
        alive = [shared for shared in (module_ref() for module_ref in self._modules) if shared]
        excluded = [shared for shared in alive if shared.module in modules]
        for shared in excluded:
            shared.is_gathered = True
        try:
            yield
        finally:
            for shared in excluded:
                shared.is_gathered = False

    def finish(self) -> None:
        """Returns once no process has a call left to make; call it before every other collective."""
        if self._modules:
            self._wait_until_next((_Kind.WAIT, 0))

    def _before_backward(self) -> list[Tensor]:
        """Waits until every process has made its forwards; returns the outputs of this process's empty ones."""
        self._wait_until_next((_Kind.BACKWARD, 0))
        outputs, self._outputs = self._outputs, []
        return outputs

    def _wait_until_next(self, this_call: _Call) -> None:
        """Returns when this call is next; until then makes empty calls for the other processes.

        Forwards come first, those without gradients before the others: a process that makes one with gradients may be
        inside an auxiliary context in which an empty call would have none. Backwards follow.
        """
        while not self._is_empty:  # an empty call is already ordered
            announced = self._gather_calls(this_call)
            calls = [each.call for each in announced]
            forwards = [call for kind in (_Kind.FORWARD, _Kind.GRADIENT) for call in calls if call[0] == kind]
            next_call = forwards[0] if forwards else max(calls)
            kind, index = next_call
            leader = calls.index(next_call)
            if forwards and any(each.call != next_call and index in each.lacks for each in announced):
                self._broadcast_arguments(index, leader)
            if next_call == this_call:
                return
            with self._empty_call(announced[leader].autocast):
                self._make_call(_Kind(kind), index, leader)

    def _gather_calls(self, this_call: _Call) -> list[_Announced]:
        """Returns the announced call of each process."""
        device = self.accelerator.device
        autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        modules = [module_ref() for module_ref in self._modules]
        has_arguments = [shared is not None and shared.has_arguments for shared in modules]
        row = torch.tensor([[*this_call, _AUTOCAST.index(autocast), *has_arguments]], device=device)
        rows: list[list[int]] = gather(row).tolist()
        return [
            _Announced((kind, index), _AUTOCAST[dtype], frozenset(n for n, has in enumerate(has_each) if not has))
            for kind, index, dtype, *has_each in rows
        ]

    def _shared_module(self, index: int) -> _SharedModule:
        shared = self._modules[index]()
        assert shared is not None  # another process calls it
        return shared

    def _broadcast_arguments(self, index: int, leader: int) -> None:
        """Copies the leader's arguments to the processes that have none."""
        shared = self._shared_module(index)
        is_leader = self.accelerator.process_index == leader
        arguments = [tree_map_only(Tensor, Tensor.cpu, shared.last) if is_leader else None]
        broadcast_object_list(arguments, from_process=leader)
        if shared.last is None:
            shared.last = tree_map_only(Tensor, lambda tensor: tensor.to(self.accelerator.device), arguments[0])

    def _save(self, index: int, folder: Path) -> None:
        """Makes all processes write their shards of a module."""
        self._wait_until_next((_Kind.FILES, index))
        failures = self._write(index, folder, self.accelerator.process_index)
        if failures:
            raise OSError("; ".join(failures))

    def _write(self, index: int, folder: Path | None, leader: int) -> list[str]:
        """Writes this process's shards into the leader's folder; returns the failures of all processes."""
        process, is_leader = self.accelerator.process_index, folder is not None
        (folder,) = broadcast_object_list([folder], from_process=leader)
        assert folder is not None
        failures: list[str] = []
        try:
            pieces = pieces_of(self._shared_module(index).within, is_complete=is_leader)
            write_shard(folder, pieces, process=process, num_processes=self.accelerator.num_processes)
        except (OSError, RuntimeError, SafetensorError) as error:  # the others wait, and one of them raises it
            failures.append(f"process {process}: {error}")
        return gather_object(failures)

    def _make_call(self, kind: _Kind, index: int, leader: int) -> None:
        """Makes an empty call for the process that leads."""
        if kind is _Kind.BACKWARD:
            outputs, self._outputs = self._outputs, []
            torch.autograd.backward(outputs, [torch.zeros_like(output) for output in outputs])
            return
        shared = self._shared_module(index)
        if kind is _Kind.STATE:
            shared.module.state_dict()
            return
        if kind is _Kind.FILES:
            self._write(index, None, leader)
            return
        args, kwargs = shared.arguments
        with torch.set_grad_enabled(kind is _Kind.GRADIENT):
            leaves = tree_flatten(shared.module(*args, **kwargs))[0]
        self._outputs += [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]

    @contextmanager
    def _empty_call(self, autocast: torch.dtype | None) -> Iterator[None]:
        """Context of an empty call under an autocast dtype; it leaves replicated gradients of this process unchanged.

        Gradients of sharded parameters belong to all processes, and do change.
        """
        alive = [shared for shared in (module_ref() for module_ref in self._modules) if shared is not None]
        parameters = [p for shared in alive for p in shared.module.parameters() if p.requires_grad]
        replicated = [parameter for parameter in parameters if layout_of(parameter) is None]
        grads = [parameter.grad for parameter in replicated]
        for parameter in replicated:
            parameter.grad = None
        self._is_empty = True
        try:
            with torch.autocast(self.accelerator.device.type, dtype=autocast, enabled=autocast is not None):
                yield
        finally:
            self._is_empty = False  # empty calls are not ordered, so they are never nested
            for parameter, grad in zip(replicated, grads, strict=True):
                parameter.grad = grad


def _detached_like(tensor: Tensor) -> Tensor:
    """Returns the tensor without its graph, differentiable if it was."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
