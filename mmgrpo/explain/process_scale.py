"""What a run on several processes holds and takes on each of them, predicted from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from math import ceil
from typing import Any

import torch
from torch import nn

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.registry import outline_of, settings_type
from mmgrpo.errors import ConfigError
from mmgrpo.explain.costs import num_steps_of
from mmgrpo.explain.forward_counts import forwards_per_sample
from mmgrpo.explain.measured_passes import cache_file, read_passes, write_passes
from mmgrpo.explain.memory_meter import Passes, passes_of
from mmgrpo.explain.operator_times import MachineSpeed, optimizer_work
from mmgrpo.explain.resident_memory import ResidentMemory, block_sizes, gathered_bytes, held_by, trained_sizes
from mmgrpo.outline import Outline
from mmgrpo.system.targets import is_own
from mmgrpo.values import REFERENCE

GIB = 2**30


class ShardingEngine(StrEnum):
    """How the processes hold a model."""

    GPUS = "gpus"
    FSDP2 = "fsdp2"
    ZERO2 = "zero2"
    ZERO3 = "zero3"

    @property
    def words(self) -> str:
        """As a line has it."""
        if self is ShardingEngine.GPUS:
            return "whole on each"
        return f"in parts ({'FSDP2' if self is ShardingEngine.FSDP2 else f'DeepSpeed ZeRO-{self[-1]}'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Bytes on each process.

    Attributes:
        held: what stays.
        drawing: blocks that are whole beside their parts while a rollout is drawn, where there are parts: all of them
            with ``runtime.gather_for_rollout``, else two.
        learning: those that are in an update: two; with ZeRO-2 all of them.
        rollout: beside them, of a batch of the rollout.
        update: beside them, of a slice of an update.
    """

    held: ResidentMemory
    drawing: int
    learning: int
    rollout: int
    update: int

    @property
    def peak(self) -> int:
        """The most at a time; gradients are there in the update alone."""
        drawing = self.held.total - self.held.gradients + self.drawing + self.rollout
        return max(drawing, self.held.total + self.learning + self.update)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Of a step on each process; rewards, evaluation and checkpoints are not in it.

    Passes take what ``Machine.seconds`` says of their operators.

    Attributes:
        rollout: forwards that draw, with the draw itself of texts.
        views: values and other weights: forwards without grad.
        update: forwards and backwards, with what checkpointing computes again.
        optimizer: steps of AdamW and of the average.
        sums: of gradients that are whole: 2 (N - 1) / N * their bytes / link, an update (a ring's all-reduce).
        gathers: of blocks in parts: (N - 1) / N * their bytes / link, once a rollout, or a call of it without
            ``runtime.gather_for_rollout``; once another call without grad; twice, or once with ZeRO-2, and once more
            where they are trained, a call with grad.
    """

    rollout: float
    views: float
    update: float
    optimizer: float
    sums: float
    gathers: float

    @property
    def total(self) -> float:
        """One after the other: nothing is taken to overlap."""
        return sum(getattr(self, one.name) for one in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run's policy, looked at once for a number of processes."""

    config: RunConfig
    outline: Outline
    passes: Passes
    names_kept: int
    num_processes: int

    def memory(self, engine: ShardingEngine = ShardingEngine.GPUS) -> ProcessMemory:
        """Of each process."""
        outline, parts = self.outline, self._parts(engine)
        full = [] if self._lora else [outline.modules[name] for name in outline.trained]
        sizes = sum(block_sizes(parts))
        return ProcessMemory(
            held=held_by(
                outline.modules.values(),
                copied=full,
                sharded=parts,
                num_processes=self.num_processes,
                averages=self.config.update.ema is not None,
                num_copies=self.names_kept,
            ),
            drawing=sizes if self.config.runtime.gather_for_rollout else gathered_bytes(parts),
            learning=sizes if engine is ShardingEngine.ZERO2 else gathered_bytes(parts),
            rollout=self.passes.rollout.num_bytes,
            update=self.passes.update.num_bytes,
        )

    def seconds(self, machine: MachineSpeed, engine: ShardingEngine = ShardingEngine.GPUS) -> Seconds:
        """Of a step on each process; a group is whole, so that a process has one at least."""
        config, outline, passes, num_processes = self.config, self.outline, self.passes, self.num_processes
        rows = ceil(config.rollout.prompts_per_step / num_processes) * config.rollout.group_size
        drawn, beside, learnt = _forwards(config)
        share, link = (num_processes - 1) / num_processes, machine.link_gb_s * 1e9
        parts, num_updates = self._parts(engine), config.update.epochs * config.update.minibatches
        gathers, summed = 0.0, self.memory(engine).held.gradients
        if parts:
            gathered, trained = sum(block_sizes(parts)), 0 if self._lora else 1
            drawing = ceil(rows / outline.rollout_rows) * drawn * passes.rollout_calls
            slices, with_grad = rows / outline.update_rows, (1 if engine is ShardingEngine.ZERO2 else 2) + trained
            times = (1 if config.runtime.gather_for_rollout else drawing) + slices * (beside + with_grad * learnt)
            gathers = times * share * gathered / link
            summed = held_by(outline.modules.values()).gradients - trained * gathered
        steps = optimizer_work(
            trained_sizes(outline.modules.values(), sharded=parts, num_processes=num_processes),
            averages=config.update.ema is not None,
            together=machine.steps_together,
        )
        return Seconds(
            rollout=drawn * machine.batched(passes.rollout.work, rows=rows, each=outline.rollout_rows),
            views=0.0
            if passes.forward is None
            else beside * machine.batched(passes.forward.work, rows=rows, each=outline.update_rows),
            update=learnt * machine.batched(passes.update.work, rows=rows, each=outline.update_rows),
            optimizer=num_updates * machine.seconds(steps),
            sums=num_updates * 2 * share * summed / link,
            gathers=gathers,
        )

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights as they are loaded."""
        return getattr(torch, _settings_of(self.config).dtype)

    @property
    def device(self) -> torch.device:
        """That a process of this machine would compute on."""
        there = torch.accelerator.current_accelerator(check_available=True)
        return torch.device(self.config.runtime.device or there or "cpu")

    @property
    def _lora(self) -> bool:
        return _settings_of(self.config).lora is not None

    def _parts(self, engine: ShardingEngine) -> Sequence[nn.Module]:
        """The modules whose blocks lie in parts; ZeRO-2 leaves whole what carries an adapter."""
        whole = (
            self.num_processes == 1 or engine is ShardingEngine.GPUS or (engine is ShardingEngine.ZERO2 and self._lora)
        )
        return () if whole else self.outline.sharded


def planned(
    config: RunConfig,
    *,
    num_processes: int = 1,
    prompt_tokens: int = 512,
    say: Callable[[str], None] = lambda _: None,
) -> Planned:
    """Looks at the policy of a run; what was counted before on this machine is read again.

    Args:
        config: of the run.
        num_processes: over which its groups are dealt out; a batch has no more rows than one of them.
        prompt_tokens: of each prompt of a language model, those of its pictures included.
        say: is given a line before each pass whose operators are counted.

    Returns:
        The plan.

    Raises:
        ConfigError: its sizes, or how it is called, are not known.
    """
    outline = None if config.policy is None else outline_of(config.policy.name)
    if config.policy is None or outline is None:
        name = "a live policy" if config.policy is None else f"policy {config.policy.name}"
        raise ConfigError(f"memory and time are predicted for the policies denoising and language, not for {name}")
    if config.runtime.context_parallel > 1:
        raise ConfigError(
            "memory and time are not predicted with runtime.context_parallel; leave it out of what is asked"
        )
    settings = _settings_of(config)
    group_size = config.rollout.group_size
    num_rows = ceil(config.rollout.prompts_per_step / num_processes) * group_size
    found = outline(settings, prompt_tokens=prompt_tokens, group_size=group_size, num_rows=num_rows)
    reads = config.advantage.kl_beta > 0 or REFERENCE in Algorithm.of(config).objective.views
    copies = int(reads and settings.lora is None)
    return Planned(
        config=config,
        outline=found,
        passes=_passes(config, found, f"{settings.model_dump_json()} {prompt_tokens} {group_size} {num_rows}", say),
        names_kept=copies,
        num_processes=num_processes,
    )


def _passes(config: RunConfig, outline: Outline, call: str, say: Callable[[str], None]) -> Passes:
    """The passes of an outline, from the cache where they are in it; code of the user's own is counted each time."""
    try:
        without_grad = _forwards(config)[1] > 0
    except ConfigError:  # of the time, which is not known then; the memory is
        without_grad = False
    policy = config.policy
    assert policy is not None
    own = is_own(str(policy.numbers.get("model", "")))
    file = None if own else cache_file(outline, f"{policy.name} {without_grad} {call}")
    cached = None if file is None else read_passes(file)
    if cached is not None:
        return cached
    passes = passes_of(outline, without_grad=without_grad, say=say)
    if file is not None:
        write_passes(file, passes)
    return passes


def scale_rows(plan: Planned, machine: MachineSpeed, engine: ShardingEngine) -> Iterator[tuple[str, str]]:
    """Lines of ``mmgrpo explain``."""
    num_processes, memory, seconds = plan.num_processes, plan.memory(engine), plan.seconds(machine, engine)
    words = engine.words if memory.learning else ShardingEngine.GPUS.words
    yield "processes", f"{num_processes}, the model {words}: predicted, not measured"
    held = memory.held
    parts = {
        "trained": held.trained,
        "frozen": held.frozen,
        "buffers": held.buffers,
        "gradients": held.gradients,
        "moments": held.moments,
        "average": held.average,
        "copies": held.copies,
        "blocks gathered to draw": memory.drawing,
        "to learn": memory.learning,
        f"rollout of {plan.outline.rollout_rows} rows": memory.rollout,
        f"update of {plan.outline.update_rows} rows": memory.update,
    }
    told = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items() if size)
    yield "memory", f"{memory.peak / GIB:.1f} GiB at the most on each: {told}"
    taken = {one.name: getattr(seconds, one.name) for one in fields(seconds)}
    told = ", ".join(f"{name} {value:.3g}" for name, value in taken.items() if value)
    yield "time", f"{seconds.total:.3g} s a step without rewards: {told}"
    yield "assumed", "; ".join((machine.words, *plan.outline.assumed))
    prompts = plan.config.rollout.prompts_per_step
    if prompts % num_processes:
        more = num_processes * ceil(prompts / num_processes)
        yield "groups", f"{prompts} do not divide by {num_processes}: rollout.prompts_per_step={more}"


def _forwards(config: RunConfig) -> tuple[float, float, float]:
    """Forwards of a row at a step: drawn, without grad beside the update, and with grad; of texts one, in passes."""
    settings: dict[str, Any] = _settings_of(config).model_dump()
    if "call" in settings:
        num_steps = num_steps_of(settings, "call")
        counted = (
            None
            if num_steps is None
            else forwards_per_sample(Algorithm.of(config), num_steps, settings["reading"]["num_levels"])
        )
        if num_steps is None or counted is None or counted.rollout is None:
            raise ConfigError("time is predicted for a known number of steps: set policy.call.num_inference_steps")
        beside = counted.values.at(num_steps) + counted.views.at(num_steps)
        return counted.rollout.at(num_steps), beside, counted.update.at(num_steps)
    objective, passes = Algorithm.of(config).objective, float(config.update.epochs)
    values = 0.0
    if objective.needs_values:
        values = passes - 1 / config.update.minibatches if objective.rollout_knows_values else passes
    beside = values + (passes + (0.0 if objective.separable else values)) * len(objective.views & {REFERENCE})
    return 1.0, beside, passes


def _settings_of(config: RunConfig) -> Any:
    policy = config.policy
    assert policy is not None
    return settings_type(policy.name)(**policy.numbers)
