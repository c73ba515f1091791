"""What a run on several processes holds and takes on each of them, predicted from its configuration alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from mmgrpo.config import RunConfig
from mmgrpo.config.binding import build_objective
from mmgrpo.config.registry import outline_of, settings_type
from mmgrpo.errors import ConfigError
from mmgrpo.explain.costs import num_steps_of
from mmgrpo.explain.forwards import forwards_per_sample
from mmgrpo.explain.memory import Held, block_sizes, gathered_bytes, held_by
from mmgrpo.explain.metering import Passes, passes_of
from mmgrpo.outline import Outline
from mmgrpo.values import REFERENCE

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is assumed of the machines; nothing of it is measured.

    Attributes:
        tflops: of arithmetic that a process gets done, in 1e12 operations a second: not the peak of its GPU.
        memory_gb_s: at which its weights are read, in 1e9 bytes a second.
        link_gb_s: between the processes, of each, in 1e9 bytes a second.
    """

    tflops: float = 400.0
    memory_gb_s: float = 2500.0
    link_gb_s: float = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on each process.

    Attributes:
        held: what stays.
        drawing: blocks that are whole beside their parts while a rollout is drawn, where FSDP2 shards: all of them
            with ``runtime.gather_for_rollout``, else two.
        learning: those that are in an update, two.
        rollout: beside them, of a batch of the rollout.
        update: beside them, of a slice of an update.
    """

    held: Held
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
    """Of a step on each process; rewards, evaluation, checkpoints and what a GPU waits for its host are not in it.

    Attributes:
        rollout: max(operations / throughput, calls * bytes of the trained model / memory bandwidth).
        views: values and other weights: forwards without grad, operations / throughput.
        update: forwards and backwards, with what checkpointing computes again, operations / throughput.
        sums: of gradients that are whole: 2 (N - 1) / N * their bytes / link, an update (a ring's all-reduce).
        gathers: of blocks in parts: (N - 1) / N * their bytes / link, once a rollout, or a call of it without
            ``runtime.gather_for_rollout``; once another call without grad; twice, and once more where they are trained,
            a call with grad.
    """

    rollout: float
    views: float
    update: float
    sums: float
    gathers: float

    @property
    def total(self) -> float:
        """One after the other: nothing is taken to overlap."""
        return self.rollout + self.views + self.update + self.sums + self.gathers


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run's policy, looked at once; ``memory`` and ``seconds`` are for any number of processes."""

    config: RunConfig
    outline: Outline
    passes: Passes
    names_kept: int

    def memory(self, num_processes: int, *, sharded: bool) -> Memory:
        """Of each of so many processes."""
        outline, parts = self.outline, self.outline.sharded if sharded and num_processes > 1 else ()
        full = [outline.modules[name] for name in outline.trained] if _lora(self.config) is None else []
        return Memory(
            held=held_by(
                outline.modules.values(),
                copied=full,
                sharded=parts,
                num_processes=num_processes,
                averages=self.config.update.ema is not None,
                num_copies=self.names_kept,
            ),
            drawing=sum(block_sizes(parts)) if self.config.runtime.gather_for_rollout else gathered_bytes(parts),
            learning=gathered_bytes(parts),
            rollout=self.passes.rollout.num_bytes,
            update=self.passes.update.num_bytes,
        )

    def seconds(self, num_processes: int, machine: Machine, *, sharded: bool) -> Seconds:
        """Of a step on each of so many processes; a group is whole, so that a process has one at least."""
        config, outline, passes = self.config, self.outline, self.passes
        rows = ceil(config.rollout.prompts_per_step / num_processes) * config.rollout.group_size
        drawn, beside, learnt = _forwards(config)
        rollouts = ceil(rows / outline.rollout_rows) * drawn
        slices = rows / outline.update_rows
        speed, link = machine.tflops * 1e12, machine.link_gb_s * 1e9
        share = (num_processes - 1) / num_processes
        weights = sum(_bytes(outline.modules[name]) for name in outline.trained)
        calls = rollouts * passes.rollout_calls
        gathers = 0.0
        held = self.memory(num_processes, sharded=sharded).held
        num_updates = config.update.epochs * config.update.minibatches
        summed = held.gradients
        if sharded and num_processes > 1:
            trains = _lora(config) is None
            drawn_by = 1 if config.runtime.gather_for_rollout else calls
            times = drawn_by + slices * (beside + (3 if trains else 2) * learnt)
            gathers = times * share * sum(block_sizes(outline.sharded)) / link
            whole = held_by(outline.modules.values()).gradients
            parted = sum(block_sizes(outline.sharded)) if trains else 0
            summed = max(whole - parted, 0)
        work = rows / outline.rollout_rows * drawn * passes.rollout.flops / speed
        return Seconds(
            rollout=max(work, calls * weights / (machine.memory_gb_s * 1e9)),
            views=slices * beside * passes.forward.flops / speed,
            update=slices * learnt * passes.update.flops / speed,
            sums=num_updates * 2 * share * summed / link,
            gathers=gathers,
        )


def planned(config: RunConfig, *, prompt_tokens: int = 512) -> Planned:
    """Looks at the policy of a run.

    Args:
        config: of the run.
        prompt_tokens: of each prompt of a language model, those of its pictures included.

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
    settings = settings_type(config.policy.name)(**config.policy.numbers)
    group_size = config.rollout.group_size
    num_rows = config.rollout.prompts_per_step * group_size
    found = outline(settings, prompt_tokens=prompt_tokens, group_size=group_size, num_rows=num_rows)
    reads = config.advantage.kl_beta > 0 or REFERENCE in build_objective(config.objective).views
    copies = int(reads) if _lora(config) is None else 0
    return Planned(config=config, outline=found, passes=passes_of(found), names_kept=copies)


def scale_rows(plan: Planned, num_processes: int, machine: Machine, *, sharded: bool) -> Iterator[tuple[str, str]]:
    """Lines of ``mmgrpo explain``."""
    memory = plan.memory(num_processes, sharded=sharded)
    seconds = plan.seconds(num_processes, machine, sharded=sharded)
    engine = "in parts (FSDP2)" if sharded and num_processes > 1 else "whole on each"
    yield "processes", f"{num_processes}, the model {engine}: predicted, not measured"
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
    taken = {name: getattr(seconds, name) for name in ("rollout", "views", "update", "sums", "gathers")}
    told = ", ".join(f"{name} {value:.3g}" for name, value in taken.items() if value)
    yield "time", f"{seconds.total:.3g} s a step without rewards: {told}"
    assumed = f"{machine.tflops:g} TFLOP/s, {machine.memory_gb_s:g} GB/s of memory, {machine.link_gb_s:g} GB/s of link"
    yield "assumed", "; ".join((assumed, *plan.outline.assumed))
    prompts = plan.config.rollout.prompts_per_step
    if prompts % num_processes:
        more = num_processes * ceil(prompts / num_processes)
        yield "groups", f"{prompts} do not divide by {num_processes}: rollout.prompts_per_step={more}"


def _forwards(config: RunConfig) -> tuple[float, float, float]:
    """Forwards of a row at a step: drawn, without grad beside the update, and with grad; of texts one, in passes."""
    policy = config.policy
    assert policy is not None
    settings: dict[str, Any] = settings_type(policy.name)(**policy.numbers).model_dump()
    if "call" in settings:
        num_steps = num_steps_of(settings, "call")
        counted = (
            None if num_steps is None else forwards_per_sample(config, num_steps, settings["reading"]["num_levels"])
        )
        if num_steps is None or counted is None or counted.rollout is None:
            raise ConfigError("time is predicted for a known number of steps: set policy.call.num_inference_steps")
        beside = counted.values.at(num_steps) + counted.views.at(num_steps)
        return counted.rollout.at(num_steps), beside, counted.update.at(num_steps)
    objective, passes = build_objective(config.objective), float(config.update.epochs)
    values = 0.0
    if objective.needs_values:
        values = passes - 1 / config.update.minibatches if objective.rollout_knows_values else passes
    beside = values + (passes + (0.0 if objective.separable else values)) * len(objective.views & {REFERENCE})
    return 1.0, beside, passes


def _lora(config: RunConfig) -> Any:
    policy = config.policy
    assert policy is not None
    return settings_type(policy.name)(**policy.numbers).lora


def _bytes(module: Any) -> int:
    return sum(one.numel() * one.element_size() for one in module.parameters())
