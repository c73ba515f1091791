"""Weights in parts as DeepSpeed's ZeRO lays them, under an optimiser that is not DeepSpeed's.

DeepSpeed parts parameters (``zero.Init``), gathers them where a block is called and differentiated (its hooks of
ZeRO-3), and adds gradients over the processes (``reduce_scatter_coalesced``). When it does so is said here, since its
engine, which says it otherwise, steps an optimiser of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final
from weakref import WeakKeyDictionary

import deepspeed
import torch
from accelerate.utils import DeepSpeedPlugin
from deepspeed.runtime.comm.coalesced_collectives import reduce_scatter_coalesced
from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK, DeepSpeedZeRoOffload
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus, register_external_parameter
from deepspeed.runtime.zero.utils import apply_to_tensors_only
from deepspeed.utils import set_z3_leaf_module
from torch import Tensor, nn

from mmgrpo.errors import ConfigError
from mmgrpo.layouts import set_layout

logger = logging.getLogger(__name__)

KEPT = "kept whole"
"""Among the modules that DeepSpeed thinks a parameter is in use by, so that it does not let go of it."""
SPEED = "zero_optimization."
"""What its settings under this key change but the stage, the update does not depend on."""


@final
class Flat:
    """As DeepSpeed lays a parameter: in equal runs of its entries, the last ones shorter."""

    def __init__(self, parameter: Any) -> None:
        """Of a parameter that lies so."""
        self.shape: torch.Size = parameter.ds_shape
        self._numel: int = parameter.ds_numel
        self._held: Tensor = parameter.ds_tensor  # with room for the longest run
        self.start: int = min(parameter.ds_zero_partition_rank * len(self._held), self._numel)
        self.part_shape = torch.Size([min(self._numel - self.start, len(self._held))])
        self._num_parts: int = parameter.ds_zero_partition_world_size

    def part(self, parameter: Any) -> Tensor:
        """This process's run, in the same memory."""
        return self._held[: self.part_shape.numel()]

    def gradient(self, parameter: Any) -> Tensor | None:
        """Which is no longer than the part once a backward is over."""
        return parameter.grad

    def whole(self, value: Tensor) -> Tensor:
        """As ``Layout`` has it."""
        padded = torch.cat([value, value.new_zeros(len(self._held) - len(value))])
        found = value.new_empty(len(padded) * self._num_parts)
        torch.distributed.all_gather_into_tensor(found, padded)
        return found[: self._numel].view(self.shape)


@final
class Zero:
    """ZeRO-2 or ZeRO-3, as accelerate is asked for it: ``Engine``.

    Attributes:
        name: what it is called.
        parts_bases: whether what carries an adapter lies in parts, as it does in ZeRO-3.
    """

    def __init__(self, plugin: DeepSpeedPlugin) -> None:
        """Nothing is sharded yet.

        Args:
            plugin: how it was asked to shard.

        Raises:
            ConfigError: its settings ask for what is not there.
        """
        _require_known(plugin.deepspeed_config)
        stage = int(plugin.zero_stage)
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # of CPUs alone, and compiled at first use
        self.name = f"DeepSpeed ZeRO-{stage}"
        self.parts_bases = stage == 3
        self._parted: Any = WeakKeyDictionary()

    def part(
        self,
        module: nn.Module,
        blocks: Sequence[nn.Module],
        whole: set[nn.Parameter],
        *,
        ready: Callable[[nn.Module], None],
    ) -> None:
        """Lays the parameters of the blocks in parts."""
        for block in reversed(blocks):  # a block's own blocks before it
            ready(block)
            with _seen_without(block, whole):
                for parameter in block.parameters():
                    parameter.data = parameter.data.contiguous()
                deepspeed.zero.Init(module=block, mem_efficient_linear=self.parts_bases, dtype=torch.float32)
        self._parted[module] = _Parted(nn.ModuleList(blocks), whole, until_backward=not self.parts_bases)

    @contextmanager
    def gathered(self, modules: Collection[nn.Module]) -> Iterator[None]:
        """Within it these are whole on every process."""
        there = [self._parted[module] for module in modules]
        for one in there:
            one.gather()
        try:
            yield
        finally:
            for one in there:
                one.release()


class _Parted(DeepSpeedZeRoOffload):
    """The blocks of a module, with DeepSpeed's hooks on each of them.

    The processes meet where a block is about to be differentiated, in one order; there the gradients of the block
    before it are added, and at the end of the pass those that came later.
    """

    def __init__(self, blocks: nn.ModuleList, whole: set[nn.Parameter], *, until_backward: bool) -> None:
        """Puts the hooks on them.

        Args:
            blocks: which were parted, an outer block before its own.
            whole: parameters of theirs that stay whole.
            until_backward: whether what is called to be differentiated stays whole until it is.
        """
        self._until_backward = until_backward
        self._is_gathered = False
        self._current: nn.Module | None = None
        self._earlier: dict[Any, Tensor | None] | None = None  # gradients of earlier passes, within one
        with _seen_without(blocks, whole):
            for block in blocks:
                set_z3_leaf_module(block, True)  # else its layers have hooks each
            super().__init__(
                blocks,
                timers=None,
                ds_config=None,
                overlap_comm=False,
                prefetch_bucket_size=0,
                max_reuse_distance=0,
                max_live_parameters=0,
                param_persistence_threshold=0,
            )
            self._layouts: dict[Any, Flat] = {parameter: Flat(parameter) for parameter in blocks.parameters()}
        FWD_MODULE_STACK.remove(blocks)
        for hook in self.backward_hooks[1::2]:
            hook.remove()  # they take a block to be differentiated after its last call alone, and see no keywords
        self._own: dict[nn.Module, list[Any]] = {}
        left = dict(self._layouts)
        for block in reversed(blocks):  # a block's own blocks before it
            set_z3_leaf_module(block, False)
            self._own[block] = [p for p in block.parameters() if left.pop(p, None) is not None]
            for parameter in self._own[block]:
                register_external_parameter(block, parameter)
            block.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        for parameter, layout in self._layouts.items():
            set_layout(parameter, layout)
        self._hold(self._layouts)

    def gather(self) -> None:
        """Makes them whole until ``release``; a collective."""
        self._is_gathered = True
        for own in self._own.values():
            if own:
                own[0].all_gather(own)
            for parameter in own:
                parameter.ds_active_sub_modules.add(KEPT)

    def release(self) -> None:
        """Lets go of all that is not this process's."""
        self._is_gathered = False
        self.release_backward_leftovers()
        del FWD_MODULE_STACK[:]  # where a call that was made again for its backward alone did not end
        for parameter in self._layouts:
            parameter.ds_active_sub_modules.clear()
            parameter.partition()
        self._hold(self._layouts)

    def post_sub_module_forward_function(self, sub_module: Any) -> None:
        """After a block's forward."""
        super().post_sub_module_forward_function(sub_module)
        self._hold(self._own[sub_module])

    def pre_sub_module_backward_function(self, sub_module: Any) -> None:
        """Before a block's backward."""
        if self._earlier is None:
            self._earlier = {p: p.grad for p in self._layouts if p.requires_grad}
            for parameter in self._earlier:
                parameter.grad = None
        torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        if self._current not in (None, sub_module):
            self._reduce(self._own[self._current])
        self._current = sub_module
        super().pre_sub_module_backward_function(sub_module)

    def post_sub_module_backward_function(self, sub_module: Any) -> None:
        """After a block's backward."""
        super().post_sub_module_backward_function(sub_module)
        self._hold(self._own[sub_module])

    def _before_forward(self, block: nn.Module, args: Any, kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return None
        if self._until_backward:
            for parameter in self._own[block]:
                parameter.ds_active_sub_modules.add(KEPT)
        inputs: list[Tensor] = []

        def see(tensor: Tensor) -> Tensor:
            inputs.extend([tensor] if tensor.requires_grad else [])
            return tensor

        apply_to_tensors_only(see, (args, kwargs))
        if not inputs:
            return None
        given: Any = _Given.apply(lambda: self.post_sub_module_backward_function(block), *inputs)
        each = iter(given)
        return apply_to_tensors_only(lambda one: next(each) if one.requires_grad else one, (args, kwargs))

    def _after_backward(self) -> None:
        if self._earlier is None:  # as one callback for each block is asked for
            return
        if self._current is not None:
            self._reduce(self._own[self._current])
        trained = list(self._earlier)
        late = torch.tensor([float(p.grad is not None) for p in trained], device=trained[0].device if trained else None)
        if trained:
            torch.distributed.all_reduce(late)
        self._reduce([p for p, there in zip(trained, late.tolist(), strict=True) if there])
        earlier, self._earlier, self._current = self._earlier, None, None
        if not self._is_gathered:
            self.release()
        for parameter, grad in earlier.items():
            parameter.grad = grad

    def _reduce(self, parameters: Sequence[Any]) -> None:
        """Adds what was found of their gradients by now, over the processes."""
        assert self._earlier is not None
        trained = [p for p in parameters if p in self._earlier]
        if not trained:
            return
        grads = [torch.zeros(p.ds_shape, dtype=p.dtype, device=p.device) if p.grad is None else p.grad for p in trained]
        group = trained[0].ds_process_group
        parts = reduce_scatter_coalesced(grads, group=group)  # of their mean
        for parameter, part in zip(trained, parts, strict=True):
            total, there = part.mul_(parameter.ds_zero_partition_world_size), self._earlier[parameter]
            self._earlier[parameter] = total.clone() if there is None else there + total
            parameter.grad = None

    def _hold(self, parameters: Collection[Any]) -> None:
        """Parameters that were let go are what this process holds of them, so that gradients fit them."""
        for parameter in parameters:
            if parameter.ds_status is ZeroParamStatus.NOT_AVAILABLE:
                parameter.data = self._layouts[parameter].part(parameter)


class _Given(torch.autograd.Function):
    """What one call of a block is given, as it is; calls a function once that call was differentiated."""

    @staticmethod
    def forward(ctx: Any, after: Callable[[], None], *inputs: Tensor) -> tuple[Tensor, ...]:
        """The inputs."""
        ctx.after = after
        ctx.set_materialize_grads(False)  # what is not asked for is no zero
        return tuple(one.detach() for one in inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Their gradients."""
        ctx.after()
        return None, *grads


@contextmanager
def _seen_without(blocks: nn.Module, whole: set[nn.Parameter]) -> Iterator[None]:
    """Within it modules seem to have no such parameters; after it they have theirs as before."""
    before = {module: module._parameters for module in blocks.modules()}
    for module, there in before.items():
        module._parameters = {name: one for name, one in there.items() if one not in whole}
    try:
        yield
    finally:
        for module, there in before.items():
            module._parameters = there


def _require_known(config: Mapping[str, Any]) -> None:
    """Raises ConfigError for what is asked for and not there; warns of what only its own engine would heed."""
    told = {key: value for key, value in _leaves(config) if value not in ("auto", "none", None, False, float("inf"))}
    stage = told.pop("zero_optimization.stage", 0)
    if stage not in (2, 3):
        raise ConfigError(f"DeepSpeed's ZeRO-{stage} is not supported: zero_stage is 2 or 3, or take --accelerate gpus")
    unknown = [key for key in told if not key.startswith(SPEED) or ".offload_" in key]
    unknown = [key for key in unknown if (key, told[key]) != ("gradient_accumulation_steps", 1)]
    if unknown:
        raise ConfigError(
            f"DeepSpeed's settings have {', '.join(unknown)}, which mmgrpo does not heed: leave them out; optimiser, "
            "clipping, batches and precision are said by update, rollout and policy, and nothing is offloaded"
        )
    if told:
        logger.warning("DeepSpeed's settings of speed have no effect here: %s", ", ".join(told))


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
