"""Weights sharded by DeepSpeed's ZeRO, without DeepSpeed's optimizer.

DeepSpeed shards parameters (``zero.Init``), gathers them where a block is called and differentiated (its ZeRO-3 hooks),
and sums gradients over the processes (``reduce_scatter_coalesced``). This module decides when it does so, because
DeepSpeed's engine, which otherwise does, also steps its own optimizer.
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

PINNED = "pinned by mmgrpo"
"""Entry in the set of modules that use a parameter; DeepSpeed does not free a parameter while the set is not empty."""
SPEED = "zero_optimization."
"""Settings under this key, except the stage, change speed and not the update."""


@final
class FlatLayout:
    """DeepSpeed's ``Layout`` of a parameter: contiguous runs of equal length of its flat entries, the last shorter."""

    def __init__(self, parameter: Any) -> None:
        """Reads the layout off a sharded parameter."""
        self.shape: torch.Size = parameter.ds_shape
        self._numel: int = parameter.ds_numel
        self._local: Tensor = parameter.ds_tensor  # padded to the longest run
        self.start: int = min(parameter.ds_zero_partition_rank * len(self._local), self._numel)
        self.part_shape = torch.Size([min(self._numel - self.start, len(self._local))])
        self._num_parts: int = parameter.ds_zero_partition_world_size

    def part(self, parameter: Any) -> Tensor:
        """Returns this process's run; shares its memory."""
        return self._local[: self.part_shape.numel()]

    def gradient(self, parameter: Any) -> Tensor | None:
        """Returns the local gradient, which has the length of the run after a backward."""
        return parameter.grad

    def gather(self, value: Tensor) -> Tensor:
        """Implements ``Layout.gather``."""
        padded = torch.cat([value, value.new_zeros(len(self._local) - len(value))])
        gathered = value.new_empty(len(padded) * self._num_parts)
        torch.distributed.all_gather_into_tensor(gathered, padded)
        return gathered[: self._numel].view(self.shape)


@final
class DeepSpeedZero:
    """ZeRO-2 or ZeRO-3 under Accelerate's settings: ``WeightSharder``.

    Attributes:
        name: name for messages and checkpoints.
        shards_frozen_bases: whether a frozen model that carries an adapter is sharded; True for ZeRO-3.
        shards_compiled: whether compiled blocks are sharded; False.
    """

    def __init__(self, plugin: DeepSpeedPlugin) -> None:
        """Checks the settings; shards nothing yet.

        Args:
            plugin: Accelerate's DeepSpeed settings.

        Raises:
            ConfigError: the settings are not supported.
        """
        _require_supported(plugin.deepspeed_config)
        stage = int(plugin.zero_stage)
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for CPU-only jobs; compiles at first use
        self.name = f"DeepSpeed ZeRO-{stage}"
        self.shards_frozen_bases = stage == 3
        self.shards_compiled = False
        self._sharded: Any = WeakKeyDictionary()

    def shard_blocks(
        self,
        module: nn.Module,
        blocks: Sequence[nn.Module],
        replicated: set[nn.Parameter],
        *,
        before_block: Callable[[nn.Module], None],
    ) -> None:
        """Shards the parameters of the blocks."""
        for block in reversed(blocks):  # inner blocks first
            before_block(block)
            with _hidden_parameters(block, replicated):
                for parameter in block.parameters():
                    parameter.data = parameter.data.contiguous()
                deepspeed.zero.Init(module=block, mem_efficient_linear=self.shards_frozen_bases, dtype=torch.float32)
        until_backward = not self.shards_frozen_bases
        self._sharded[module] = _ShardedBlocks(nn.ModuleList(blocks), replicated, until_backward=until_backward)

    @contextmanager
    def gathered(self, modules: Collection[nn.Module]) -> Iterator[None]:
        """Context in which every process holds these modules in full."""
        sharded = [self._sharded[module] for module in modules]
        for blocks in sharded:
            blocks.gather()
        try:
            yield
        finally:
            for blocks in sharded:
                blocks.release()


class _ShardedBlocks(DeepSpeedZeRoOffload):
    """The sharded blocks of a module, each with DeepSpeed's hooks.

    Before each block's backward the processes reduce the gradients of the block that ran before it, in one order; at
    the end of the pass they reduce gradients that arrived later.
    """

    def __init__(self, blocks: nn.ModuleList, replicated: set[nn.Parameter], *, until_backward: bool) -> None:
        """Registers the hooks.

        Args:
            blocks: sharded blocks, outer ones before inner ones.
            replicated: parameters of the blocks that are not sharded.
            until_backward: whether a block that will be differentiated stays gathered until its backward.
        """
        self._until_backward = until_backward
        self._is_gathered = False
        self._current: nn.Module | None = None
        self._earlier: dict[Any, Tensor | None] | None = None  # gradients of earlier passes, during a backward
        with _hidden_parameters(blocks, replicated):
            for block in blocks:
                set_z3_leaf_module(block, True)  # else each of its layers gets hooks
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
            self._layouts: dict[Any, FlatLayout] = {
                parameter: FlatLayout(parameter) for parameter in blocks.parameters()
            }
        FWD_MODULE_STACK.remove(blocks)
        for hook in self.backward_hooks[1::2]:
            hook.remove()  # they handle the backward of a block's last call only, and ignore keyword arguments
        self._owned: dict[nn.Module, list[Any]] = {}
        unassigned = dict(self._layouts)
        for block in reversed(blocks):  # inner blocks first
            set_z3_leaf_module(block, False)
            self._owned[block] = [p for p in block.parameters() if unassigned.pop(p, None) is not None]
            for parameter in self._owned[block]:
                register_external_parameter(block, parameter)
            block.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        for parameter, layout in self._layouts.items():
            set_layout(parameter, layout)
        self._use_local(self._layouts)

    def gather(self) -> None:
        """Gathers the blocks until ``release``; a collective."""
        self._is_gathered = True
        for parameters in self._owned.values():
            if parameters:
                parameters[0].all_gather(parameters)
            for parameter in parameters:
                parameter.ds_active_sub_modules.add(PINNED)

    def release(self) -> None:
        """Frees the entries of other processes."""
        self._is_gathered = False
        self.release_backward_leftovers()
        del FWD_MODULE_STACK[:]  # left by a recomputed forward that did not finish
        for parameter in self._layouts:
            parameter.ds_active_sub_modules.clear()
            parameter.partition()
        self._use_local(self._layouts)

    def post_sub_module_forward_function(self, sub_module: Any) -> None:
        """Runs after a block's forward."""
        super().post_sub_module_forward_function(sub_module)
        self._use_local(self._owned[sub_module])

    def pre_sub_module_backward_function(self, sub_module: Any) -> None:
        """Runs before a block's backward."""
        if self._earlier is None:
            self._earlier = {p: p.grad for p in self._layouts if p.requires_grad}
            for parameter in self._earlier:
                parameter.grad = None
        torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        if self._current is not None and self._current is not sub_module:
            self._reduce(self._owned[self._current])
        self._current = sub_module
        super().pre_sub_module_backward_function(sub_module)

    def post_sub_module_backward_function(self, sub_module: Any) -> None:
        """Runs after a block's backward."""
        super().post_sub_module_backward_function(sub_module)
        self._use_local(self._owned[sub_module])

    def _before_forward(self, block: nn.Module, args: Any, kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return None
        if self._until_backward:
            for parameter in self._owned[block]:
                parameter.ds_active_sub_modules.add(PINNED)
        inputs: list[Tensor] = []

        def collect(tensor: Tensor) -> Tensor:
            inputs.extend([tensor] if tensor.requires_grad else [])
            return tensor

        apply_to_tensors_only(collect, (args, kwargs))
        if not inputs:
            return None
        outputs: Any = _CallAfterBackward.apply(lambda: self.post_sub_module_backward_function(block), *inputs)
        remaining = iter(outputs)
        return apply_to_tensors_only(lambda x: next(remaining) if x.requires_grad else x, (args, kwargs))

    def _after_backward(self) -> None:
        if self._earlier is None:  # a callback is queued per block; the first one has done the work
            return
        if self._current is not None:
            self._reduce(self._owned[self._current])
        trained = list(self._earlier)
        late = torch.tensor([float(p.grad is not None) for p in trained], device=trained[0].device if trained else None)
        if trained:
            torch.distributed.all_reduce(late)
        self._reduce([p for p, is_late in zip(trained, late.tolist(), strict=True) if is_late])
        earlier, self._earlier, self._current = self._earlier, None, None
        if not self._is_gathered:
            self.release()
        for parameter, grad in earlier.items():
            parameter.grad = grad

    def _reduce(self, parameters: Sequence[Any]) -> None:
        """Sums the gradients computed so far over the processes."""
        assert self._earlier is not None
        trained = [p for p in parameters if p in self._earlier]
        if not trained:
            return
        grads = [torch.zeros(p.ds_shape, dtype=p.dtype, device=p.device) if p.grad is None else p.grad for p in trained]
        group = trained[0].ds_process_group
        parts = reduce_scatter_coalesced(grads, group=group)  # returns means
        for parameter, part in zip(trained, parts, strict=True):
            total, earlier = part.mul_(parameter.ds_zero_partition_world_size), self._earlier[parameter]
            self._earlier[parameter] = total.clone() if earlier is None else earlier + total
            parameter.grad = None

    def _use_local(self, parameters: Collection[Any]) -> None:
        """Sets the data of freed parameters to their local run, so that gradients have matching shapes."""
        for parameter in parameters:
            if parameter.ds_status is ZeroParamStatus.NOT_AVAILABLE:
                parameter.data = self._layouts[parameter].part(parameter)


class _CallAfterBackward(torch.autograd.Function):
    """Identity on the inputs of one call; calls a function after that call's backward."""

    @staticmethod
    def forward(ctx: Any, after: Callable[[], None], *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the inputs."""
        ctx.after = after
        ctx.set_materialize_grads(False)  # a missing gradient is None, not zero
        return tuple(x.detach() for x in inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Returns their gradients."""
        ctx.after()
        return None, *grads


@contextmanager
def _hidden_parameters(blocks: nn.Module, hidden: set[nn.Parameter]) -> Iterator[None]:
    """Context in which the modules of the blocks do not list these parameters."""
    before = {module: module._parameters for module in blocks.modules()}
    for module, parameters in before.items():
        module._parameters = {name: parameter for name, parameter in parameters.items() if parameter not in hidden}
    try:
        yield
    finally:
        for module, parameters in before.items():
            module._parameters = parameters


def _require_supported(config: Mapping[str, Any]) -> None:
    """Raises ConfigError for settings that are not supported; warns of those that only DeepSpeed's engine uses."""
    unset = ("auto", "none", None, False, float("inf"))
    settings = {key: value for key, value in _leaves(config) if value not in unset}
    stage = settings.pop("zero_optimization.stage", 0)
    if stage not in (2, 3):
        raise ConfigError(
            f"DeepSpeed's ZeRO-{stage} is not supported: set zero_stage to 2 or 3, or use --accelerate gpus"
        )
    unsupported = [key for key in settings if not key.startswith(SPEED) or ".offload_" in key]
    unsupported = [key for key in unsupported if (key, settings[key]) != ("gradient_accumulation_steps", 1)]
    if unsupported:
        raise ConfigError(
            f"DeepSpeed's settings have {', '.join(unsupported)}, which mmgrpo does not support: leave them out; set "
            "the optimizer, clipping, batches and precision under update, rollout and policy; offloading is not "
            "supported"
        )
    if settings:
        logger.warning("DeepSpeed's speed settings have no effect here: %s", ", ".join(settings))


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
