"""GPUs on which a run fits, and the settings that make it fit on smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from mmgrpo.algorithm import optimizer_factory
from mmgrpo.config import OptimizerConfig
from mmgrpo.explain.process_scale import GIB, ProcessPlan, ShardingEngine, plan_processes
from mmgrpo.explain.resident_memory import frozen_in_layers
from mmgrpo.layouts import blocks_of
from mmgrpo.outline import ServerMemory

CARDS = (16, 24, 48, 80)
"""Sizes in GiB."""

USABLE = 0.92
"""Share of a card for tensors; the rest is the context of CUDA and fragments. A choice of this project."""

BYTES_IN_4_BIT = 0.5 + 4 / 64
"""NF4 with a float32 scale for each 64 weights, as bitsandbytes stores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes of a process under some settings.

    Attributes:
        resident: memory of the complete run, loaded or gathered layers, and cached features.
        gradients: of trained weights, in the update.
        rollout: of a batch of the rollout.
        scoring: of a slice of samples of an inference server, without grad.
        update: of a slice of an update.
        server: of an inference server on the same GPU.
        changes: the settings that differ from the configuration, in words.
    """

    resident: int
    gradients: int
    rollout: int
    scoring: int
    update: int
    server: int = 0
    changes: tuple[str, ...] = ()

    @property
    def peak(self) -> int:
        """The maximum of rollout, scoring and update, without the server."""
        return self.resident + max(self.rollout, self.scoring, self.gradients + self.update)

    def with_changes(self, *words: str, **numbers: int) -> Need:
        """The need under further settings."""
        return replace(self, changes=(*self.changes, *words), **numbers)


def card_rows(
    plan: ProcessPlan, engine: ShardingEngine, print_line: Callable[[str], None]
) -> Iterator[tuple[str, str]]:
    """Rows of ``mmgrpo explain``: for each size of a GPU, whether the run fits, or the settings with which it does.

    Settings change in the order of their cost: rows of an update, rows of a rollout, gradient checkpointing, state of
    the optimizer, weights in 4 bit, layers on the host; with each of them, the share of an inference server on the same
    GPU, down to its weights.

    Args:
        plan: of the run.
        engine: the distribution of the model.
        print_line: prints a line before each pass that is metered.

    Yields:
        tuple[str, str]: label and text.
    """
    need, checkpointed = _need(plan, engine), _Checkpointed(plan, engine, print_line)
    server = plan.server if plan.server is not None and plan.server.share is not None else None
    for size in CARDS:
        card = _Card(size=size, server=server, server_weights=plan.num_weights * plan.dtype.itemsize)
        if server is not None and card.server_bytes <= card.server_weights:
            sizes = f"{card.server_bytes / GIB:.1f} GiB for {card.server_weights / GIB:.1f} GiB of weights"
            yield f"{size} GB", f"does not fit: the server takes {sizes}; raise {server.setting}"
            continue
        smallest, fitted = need, card.fitted(need)
        if fitted is None:
            for smallest in _smaller(plan, engine, need, checkpointed, card.room):
                if (fitted := card.fitted(smallest)) is not None:
                    break
        result = fitted or smallest.with_changes(server=card.server_bytes)
        changes, number = ", ".join(result.changes), f"{result.peak / GIB:.1f} GiB"
        if server is not None:
            number += f" and {result.server / GIB:.1f} GiB of the server"
        elif plan.server is not None:
            number += " without the server"
        if fitted is not None:
            yield f"{size} GB", f"fits{f' with {changes}' if changes else ''}: {number}"
        else:
            yield f"{size} GB", f"does not fit: {number}{f' with {changes}' if changes else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """A GPU, and the inference server on it.

    Attributes:
        size: in GB.
        server: its memory; None: there is none, or it is not counted.
        server_weights: bytes of its weights; its cache comes on top.
    """

    size: int
    server: ServerMemory | None
    server_weights: int

    @property
    def usable(self) -> int:
        """Bytes for trainer and server."""
        return int(self.size * GIB * USABLE)

    @property
    def room(self) -> int:
        """Bytes for the trainer's passes, next to a server that is as small as possible."""
        return self.usable - (0 if self.server is None or self.server.sleeps else self.server_weights)

    @property
    def server_bytes(self) -> int:
        """Bytes of the server by its settings."""
        return 0 if self.server is None else self.bytes_of(self.server.share or 0.0)

    def bytes_of(self, share: float) -> int:
        """Bytes of a share of the card."""
        return int(share * self.size * GIB)

    def fitted(self, need: Need) -> Need | None:
        """A need that fits, with a smaller share of the server if it takes one; None: it does not fit."""
        if need.peak > self.room:
            return None
        if self.server is None:
            return need
        free = self.usable - (need.resident if self.server.sleeps else need.peak)
        if self.server_bytes <= free:
            return need.with_changes(server=self.server_bytes)
        share = 100 * free // (self.size * GIB) / 100
        if self.bytes_of(share) <= self.server_weights:
            return None
        return need.with_changes(f"{self.server.setting} at most {share:g}", server=self.bytes_of(share))


@dataclass(slots=True)
class _Checkpointed:
    """The plan with gradient checkpointing, which is metered at its first use."""

    plan: ProcessPlan
    engine: ShardingEngine
    print_line: Callable[[str], None]
    need: Need | None = None

    def __call__(self) -> Need:
        if self.need is None:
            self.plan = plan_processes(
                self.plan.with_policy(gradient_checkpointing=True),
                num_processes=self.plan.num_processes,
                prompt_tokens=self.plan.prompt_tokens,
                reused=self.plan.passes,
                print_line=self.print_line,
            )
            self.need = _need(self.plan, self.engine).with_changes("policy.gradient_checkpointing=true")
        return self.need


def _need(plan: ProcessPlan, engine: ShardingEngine) -> Need:
    memory = plan.memory(engine)
    gradients = memory.resident.gradients
    blocks = max(memory.rollout_blocks, memory.update_blocks) + memory.loaded
    return Need(
        resident=memory.resident.total - gradients + blocks + memory.cached,
        gradients=gradients,
        rollout=memory.rollout,
        scoring=memory.scoring,
        update=memory.update,
    )


def _smaller(
    plan: ProcessPlan, engine: ShardingEngine, need: Need, checkpointed: _Checkpointed, limit: int
) -> Iterator[Need]:
    """Needs of less and less memory; each keeps the changes before it that still help."""
    yield _fewer_rows(plan, need, limit)
    if not plan.settings.gradient_checkpointing:
        need, plan = checkpointed(), checkpointed.plan
        yield _fewer_rows(plan, need, limit)
    is_sharded = engine is not ShardingEngine.GPUS and plan.num_processes > 1
    if is_sharded:
        return
    if plan.settings.lora is None:
        if (saved := _saved_moments(plan)) > 0:
            need = need.with_changes("update.optimizer.name=adamw_8bit", resident=need.resident - saved)
            yield _fewer_rows(plan, need, limit)
        return
    yield _fewer_rows(plan, _in_4_bit(plan, need), limit)
    if plan.server is None:  # an engine sends the weights, which must be on the device
        yield _fewer_rows(plan, _on_host(plan, need), limit)


def _fewer_rows(plan: ProcessPlan, need: Need, limit: int) -> Need:
    """With halved batches of updates and of rollouts, as often as it takes and is possible."""
    outline = plan.outline
    room = limit - need.resident - need.gradients
    num, size = _halved(outline.update_rows, need.update, outline.update_size, room)
    if num < outline.update_rows:
        has_tokens = hasattr(plan.settings, "update_tokens")
        setting = f"update_tokens={outline.update_size(num)}" if has_tokens else f"update_batch={num}"
        scoring = need.scoring * outline.update_size(num) // outline.update_size(outline.update_rows)
        need = need.with_changes(f"policy.{setting}", update=size, scoring=scoring)
    num, size = _halved(outline.rollout_rows, need.rollout, lambda rows: rows, limit - need.resident)
    return need if num == outline.rollout_rows else need.with_changes(f"policy.rollout_batch={num}", rollout=size)


def _halved(rows: int, num_bytes: int, size_of: Callable[[int], int], room: int) -> tuple[int, int]:
    """The rows of a batch that is halved until it fits into the room, or has one row, and its bytes."""
    num = rows
    while num > 1 and num_bytes * size_of(num) // size_of(rows) > room:
        num //= 2
    return num, num_bytes * size_of(num) // size_of(rows)


def _saved_moments(plan: ProcessPlan) -> int:
    """Bytes that moments in 8 bit save."""
    optimizer = plan.config.update.optimizer
    if optimizer.name != "adamw":
        return 0
    count: Any = optimizer_factory(OptimizerConfig(name="adamw_8bit"))
    shapes = [p.shape for module in plan.outline.modules.values() for p in module.parameters() if p.requires_grad]
    return plan.memory().resident.moments - sum(count.state_bytes(shape) for shape in shapes)


def _in_4_bit(plan: ProcessPlan, need: Need) -> Need:
    """With the frozen linear layers of all blocks in 4 bit, except those that are quantized."""
    names, saved = [], 0
    for name, module in plan.outline.modules.items():
        parts: list[Any] = [part for block in blocks_of(module) for part in block.modules() if _is_frozen(part)]
        weights = {id(part.weight): part.weight for part in parts if part not in plan.outline.stored_bytes}
        in_module = sum(weight.nbytes - int(BYTES_IN_4_BIT * weight.numel()) for weight in weights.values())
        if in_module > GIB // 4:
            names.append(name)
            saved += in_module
    words = f"policy.quantization_config in 4 bit ({', '.join(names)})"
    return need.with_changes(words, resident=need.resident - saved) if saved else need


def _is_frozen(part: nn.Module) -> bool:
    return isinstance(part, nn.Linear) and not part.weight.requires_grad


def _on_host(plan: ProcessPlan, need: Need) -> Need:
    """With the frozen layers of all modules on the host, except quantized ones and those that are there."""
    layers = [frozen_in_layers([module]) for module in plan.outline.modules.values()]
    names = [name for name, sizes in zip(plan.outline.modules, layers, strict=True) if sum(sizes) > GIB // 4]
    if plan.outline.stored_bytes or plan.outline.offloaded or not names:
        return need
    saved = sum(map(sum, layers)) - max(map(max, (sizes for sizes in layers if sizes)))
    return need.with_changes(f"policy.offload ({', '.join(names)})", resident=need.resident - saved)
