"""Calls that the processes of a run have to make together, though each has its own number of them.

A module whose weights lie in parts on all processes gathers them wherever it is called, forward and backward, and every
process has to take part. Processes hold other rows, so one may have more calls to make than another. Before each call
a process therefore says what it is about to do, and waits for its turn: where another's call comes first, it makes an
empty one of the same kind and lets what comes of it go. Whoever has to wait for the others makes empty calls until all
wait.
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
from mmgrpo.layouts import layout_of
from mmgrpo.policy import Arguments
from mmgrpo.runs.parts import gather_state
from mmgrpo.shards import pieces_of, save_with, write_shard


class _Kind(IntEnum):
    WAIT = 0
    FORWARD = 1
    GRADIENT = 2  # a forward that will be differentiated
    BACKWARD = 3  # of all such forwards since the last
    STATE = 4  # what a module holds, put together
    FILES = 5  # what a module holds, written as it lies


_Wish = tuple[int, int]
"""A kind, and the number of the module that a forward is of."""


@dataclass(slots=True, weakref_slot=True)
class _Shared:
    """A module, what it is saved with, and the arguments of its empty calls: those given, or those of its last call.

    While it is whole, its calls concern no other process.
    """

    module: nn.Module
    within: nn.Module
    given: Callable[[], Arguments] | None
    last: Arguments | None = None
    is_whole: bool = False

    @property
    def is_known(self) -> bool:
        return self.given is not None or self.last is not None

    @property
    def arguments(self) -> Arguments:
        found = self.last if self.given is None else self.given()
        assert found is not None
        return found


@dataclass(slots=True)
class Turns:
    """The order in which the processes call the modules that they have in common.

    Attributes:
        accelerator: accelerate's view of the processes.
    """

    accelerator: Accelerator
    _shared: list[ref[_Shared]] = field(default_factory=list)  # which live as long as their modules
    _outputs: list[Tensor] = field(default_factory=list)  # of empty forwards that will be differentiated
    _is_empty: bool = False  # whether this process only calls for others' sake

    def share(
        self,
        module: nn.Module,
        empty: Callable[[], Arguments] | None = None,
        *,
        gathers_state: bool = False,
        within: nn.Module | None = None,
    ) -> None:
        """Calls of the module are taken in turns from now on; every process shares its modules in one order.

        Args:
            module: called as a module, and differentiated by ``differentiating`` alone.
            empty: arguments of empty calls; None: those of the last call.
            gathers_state: whether its ``state_dict`` is put together from all processes, and for the main one alone,
                whoever asks for it; what it loads is whole as well. All processes write its files, then.
            within: the module that it is a part of and that is saved as one; None: itself.
        """
        if not self._shared:
            join(self._before_backward)
        number, shared = len(self._shared), _Shared(module, within or module, empty)
        self._shared.append(ref(shared))

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._is_empty:
                if empty is None:
                    shared.last = tree_map_only(Tensor, _like, (args, kwargs))
                if torch.is_grad_enabled() or not shared.is_whole:
                    self._take((_Kind.GRADIENT if torch.is_grad_enabled() else _Kind.FORWARD, number))

        module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        if gathers_state:
            gather_state(module, partial(self._take, (_Kind.STATE, number)), keeps=lambda: not self._is_empty)
            save_with(shared.within, partial(self._save, number))

    @contextmanager
    def without(self, modules: Collection[nn.Module]) -> Iterator[None]:
        """Within it calls of these modules take no turns, unless they will be differentiated.

        Args:
            modules: shared ones that were made whole on every process.
        """
        there = [shared for shared in (one() for one in self._shared) if shared and shared.module in modules]
        for shared in there:
            shared.is_whole = True
        try:
            yield
        finally:
            for shared in there:
                shared.is_whole = False

    def meet(self) -> None:
        """Returns once no process has a call to make; to be called before whatever else all of them do together."""
        if self._shared:
            self._take((_Kind.WAIT, 0))

    def _before_backward(self) -> list[Tensor]:
        """Waits until every process that has forwards to make has made them; gives what the empty ones of this gave."""
        self._take((_Kind.BACKWARD, 0))
        outputs, self._outputs = self._outputs, []
        return outputs

    def _take(self, mine: _Wish) -> None:
        """Returns when it is this wish's turn, and makes the calls before it with the others.

        Forwards come first, and of them those without a gradient: who makes one may be within a view, in which an empty
        call would have none. Then what was differentiable is differentiated.
        """
        while not self._is_empty:  # whoever calls for others' sake has no turn of its own
            wishes, unknown = self._wishes(mine)
            forwards = [wish for kind in (_Kind.FORWARD, _Kind.GRADIENT) for wish in wishes if wish[0] == kind]
            now = forwards[0] if forwards else max(wishes)
            kind, number = now
            if forwards and any(wish != now and number in lacks for wish, lacks in zip(wishes, unknown, strict=True)):
                self._lend(number, wishes.index(now))
            if now == mine:
                return
            with self._emptily():
                self._call(_Kind(kind), number, wishes.index(now))

    def _wishes(self, mine: _Wish) -> tuple[list[_Wish], list[set[int]]]:
        """What each process waits for, and the modules that it cannot call emptily."""
        there = [shared() for shared in self._shared]
        known = [shared is not None and shared.is_known for shared in there]
        row = torch.tensor([[*mine, *known]], device=self.accelerator.device)
        rows: list[list[int]] = gather(row).tolist()  # pyright: ignore[reportAttributeAccessIssue]
        return [(row[0], row[1]) for row in rows], [{n for n, known in enumerate(row[2:]) if not known} for row in rows]

    def _at(self, number: int) -> _Shared:
        shared = self._shared[number]()
        assert shared is not None  # for another process calls it
        return shared

    def _lend(self, number: int, leader: int) -> None:
        """The leader's arguments, for those who have none of their own."""
        shared = self._at(number)
        lends = self.accelerator.process_index == leader
        lent = [tree_map_only(Tensor, Tensor.cpu, shared.last) if lends else None]
        broadcast_object_list(lent, from_process=leader)
        if shared.last is None:
            shared.last = tree_map_only(Tensor, lambda one: one.to(self.accelerator.device), lent[0])

    def _save(self, number: int, folder: Path) -> None:
        """Has all processes write what they hold of a module."""
        self._take((_Kind.FILES, number))
        failures = self._write(number, folder, self.accelerator.process_index)
        if failures:
            raise OSError("; ".join(failures))

    def _write(self, number: int, folder: Path | None, leader: int) -> list[str]:
        """Writes what this process holds into the leader's folder; gives what failed on any."""
        mine, leads = self.accelerator.process_index, folder is not None
        (folder,) = broadcast_object_list([folder], from_process=leader)
        assert folder is not None
        failures: list[str] = []
        try:
            pieces = pieces_of(self._at(number).within, whole=leads)
            write_shard(folder, pieces, process=mine, num_processes=self.accelerator.num_processes)
        except (OSError, RuntimeError, SafetensorError) as error:  # the others wait, and one of them raises it
            failures.append(f"process {mine}: {error}")
        return gather_object(failures)

    def _call(self, kind: _Kind, number: int, leader: int) -> None:
        """An empty call, for the process that leads."""
        if kind is _Kind.BACKWARD:
            outputs, self._outputs = self._outputs, []
            torch.autograd.backward(outputs, [torch.zeros_like(output) for output in outputs])
            return
        shared = self._at(number)
        if kind is _Kind.STATE:
            shared.module.state_dict()
            return
        if kind is _Kind.FILES:
            self._write(number, None, leader)
            return
        args, kwargs = shared.arguments
        with torch.set_grad_enabled(kind is _Kind.GRADIENT):
            leaves = tree_flatten(shared.module(*args, **kwargs))[0]
        self._outputs += [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]

    @contextmanager
    def _emptily(self) -> Iterator[None]:
        """Within it calls are made for others' sake, and this process's own gradients are left as they were.

        Those of parameters that lie in parts are all processes', and so change.
        """
        there = [shared for shared in (one() for one in self._shared) if shared is not None]
        parameters = [p for shared in there for p in shared.module.parameters() if p.requires_grad]
        trained = [parameter for parameter in parameters if layout_of(parameter) is None]
        grads = [parameter.grad for parameter in trained]
        for parameter in trained:
            parameter.grad = None
        self._is_empty = True
        try:
            yield
        finally:
            self._is_empty = False  # an empty call takes no turns, so it is never within another
            for parameter, grad in zip(trained, grads, strict=True):
                parameter.grad = grad


def _like(tensor: Tensor) -> Tensor:
    """The tensor without its graph; what comes of it is differentiable where that was."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
