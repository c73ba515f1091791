"""Predicts memory and time per process of a run on several processes from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from math import ceil
from typing import Any

import torch
from torch import nn

from mmgrpo.algorithm import Algorithm, engine_of, optimizer_factory, strategy_of
from mmgrpo.config import RunConfig
from mmgrpo.config.registry import outline_of
from mmgrpo.config.validating import policy_settings
from mmgrpo.errors import ConfigError
from mmgrpo.explain.costs import num_levels_of, num_steps_of
from mmgrpo.explain.forward_counts import forwards_per_sample
from mmgrpo.explain.measured_passes import cache_file, read_passes, write_passes
from mmgrpo.explain.memory_meter import Passes, passes_of
from mmgrpo.explain.operator_times import MachineSpeed, optimizer_work
from mmgrpo.explain.resident_memory import (
    ResidentMemory,
    block_sizes,
    frozen_in_layers,
    gathered_bytes,
    resident_memory,
    trained_sizes,
)
from mmgrpo.explain.view_passes import reads_reference
from mmgrpo.outline import Outline, ServerMemory, SupportsServerMemory
from mmgrpo.system.targets import is_python_target
from mmgrpo.values import REFERENCE

GIB = 2**30


class ShardingEngine(StrEnum):
    """How a model is distributed over the processes."""

    GPUS = "gpus"
    FSDP2 = "fsdp2"
    ZERO2 = "zero2"
    ZERO3 = "zero3"

    @property
    def words(self) -> str:
        """The distribution in words."""
        if self is ShardingEngine.GPUS:
            return "replicated"
        return f"sharded ({'FSDP2' if self is ShardingEngine.FSDP2 else f'DeepSpeed ZeRO-{self.value[-1]}'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Bytes on each process.

    Attributes:
        resident: memory that is allocated during the complete run.
        rollout_blocks: gathered blocks during a rollout of a sharded model: all of them with
            ``runtime.gather_for_rollout``, else two.
        update_blocks: gathered blocks during an update: two; with ZeRO-2 all of them.
        rollout: peak of a batch of the rollout; 0 if an inference server generates all samples.
        scoring: peak of a slice of its samples that the trainer scores; 0 without a server.
        update: peak of a slice of an update.
        loaded: the largest layer that waits on the host, while it runs.
        cached: the full cache of outputs of frozen encoders.
    """

    resident: ResidentMemory
    rollout_blocks: int
    update_blocks: int
    rollout: int
    scoring: int
    update: int
    loaded: int = 0
    cached: int = 0

    @property
    def peak(self) -> int:
        """The peak of a step; gradients exist during the update only."""
        passes = max(self.rollout, self.scoring)
        rollout = self.resident.total - self.resident.gradients + self.rollout_blocks + passes
        return max(rollout, self.resident.total + self.update_blocks + self.update) + self.loaded + self.cached


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """Seconds of a step on each process, without rewards, evaluation and checkpoints.

    The times of passes are those of ``MachineSpeed.seconds`` for their operators.

    Attributes:
        rollout: forwards that generate, with token sampling of texts; 0 if an inference server generates all samples,
            whose time is not predicted.
        views: forwards without grad, for values, other weights, and samples of a server.
        update: forwards and backwards, with the recomputation of checkpointing.
        optimizer: steps of AdamW and of the moving average.
        sums: all-reduce of replicated gradients: 2 (N - 1) / N * their bytes / link per update (a ring).
        gathers: all-gather of sharded blocks: (N - 1) / N * their bytes / link, once per rollout, or per call of it
            without ``runtime.gather_for_rollout``; once per other call without grad; per call with grad twice, or once
            with ZeRO-2, and once more if they are trained.
    """

    rollout: float
    views: float
    update: float
    optimizer: float
    sums: float
    gathers: float

    @property
    def total(self) -> float:
        """The sum of all fields: no overlap is assumed."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """The outline and the metered passes of a run's policy for a number of processes.

    Attributes:
        config: the configuration of the run.
        outline: that of its policy; without calls of a rollout if an inference server generates all samples.
        passes: the metered passes.
        num_copies: full copies of the trained weights.
        num_processes: number of processes.
        prompt_tokens: length of each prompt of a language model.
        server: memory of the inference server; None: the trainer generates the samples.
    """

    config: RunConfig
    outline: Outline
    passes: Passes
    num_copies: int
    num_processes: int
    prompt_tokens: int = 512
    server: ServerMemory | None = None

    @property
    def settings(self) -> Any:
        """The settings of the policy."""
        return _settings_of(self.config)

    def with_policy(self, **changes: Any) -> RunConfig:
        """The configuration with other settings of the policy."""
        policy = self.config.policy
        assert policy is not None
        return self.config.model_copy(update={"policy": policy.model_copy(update=changes)})

    def memory(self, engine: ShardingEngine = ShardingEngine.GPUS) -> ProcessMemory:
        """The memory of each process."""
        outline, parts = self.outline, self._parts(engine)
        full = [] if self._lora else [outline.modules[name] for name in outline.trained]
        sizes, sets = sum(block_sizes(parts)), self.config.update.weight_sets
        return ProcessMemory(
            resident=resident_memory(
                outline.modules.values(),
                copied=full,
                sharded=parts,
                num_processes=self.num_processes,
                averages=self.config.update.ema is not None,
                num_copies=self.num_copies,
                num_sets=len(sets),
                num_set_averages=sum(section.average is not None for section in sets.values()),
                moments_of=getattr(optimizer_factory(self.config.update.optimizer), "state_bytes", None),
                stored_bytes=outline.stored_bytes,
                offloaded=outline.offloaded,
            ),
            rollout_blocks=sizes if self.config.runtime.gather_for_rollout else gathered_bytes(parts),
            update_blocks=sizes if engine is ShardingEngine.ZERO2 else gathered_bytes(parts),
            rollout=self.passes.rollout.num_bytes,
            scoring=0 if self.server is None or self.passes.forward is None else self.passes.forward.num_bytes,
            update=self.passes.update.num_bytes,
            loaded=max(frozen_in_layers(outline.offloaded), default=0),
            cached=outline.cached_bytes,
        )

    def seconds(self, machine: MachineSpeed, engine: ShardingEngine = ShardingEngine.GPUS) -> StepSeconds:
        """The seconds of a step on each process; groups are not split, so a process has at least one."""
        config, outline, passes, num_processes = self.config, self.outline, self.passes, self.num_processes
        rows = ceil(config.rollout.prompts_per_step / num_processes) * config.rollout.group_size
        rollout_forwards, no_grad_forwards, grad_forwards = _forwards(config)
        no_grad_forwards += self.server is not None  # the trainer scores the samples
        share, link = (num_processes - 1) / num_processes, machine.link_gb_s * 1e9
        parts, num_updates = self._parts(engine), config.update.epochs * config.update.minibatches
        gathers, summed = 0.0, self.memory(engine).resident.gradients
        if parts:
            gathered, trained = sum(block_sizes(parts)), 0 if self._lora else 1
            drawing = ceil(rows / outline.rollout_rows) * rollout_forwards * passes.rollout_calls
            slices, with_grad = rows / outline.update_rows, (1 if engine is ShardingEngine.ZERO2 else 2) + trained
            times = (1 if config.runtime.gather_for_rollout else drawing) + slices * (
                no_grad_forwards + with_grad * grad_forwards
            )
            gathers = times * share * gathered / link
            summed = resident_memory(outline.modules.values()).gradients - trained * gathered
        steps = optimizer_work(
            trained_sizes(outline.modules.values(), sharded=parts, num_processes=num_processes),
            averages=config.update.ema is not None,
            fused=machine.fused_optimizer,
        )
        return StepSeconds(
            rollout=rollout_forwards * machine.batched(passes.rollout.work, rows=rows, batch_size=outline.rollout_rows),
            views=0.0
            if passes.forward is None
            else no_grad_forwards * machine.batched(passes.forward.work, rows=rows, batch_size=outline.update_rows),
            update=grad_forwards * machine.batched(passes.update.work, rows=rows, batch_size=outline.update_rows),
            optimizer=num_updates * machine.seconds(steps),
            sums=num_updates * 2 * share * summed / link,
            gathers=gathers,
        )

    @property
    def num_weights(self) -> int:
        """Weights of all modules, shared ones once."""
        weights = {id(part): part for module in self.outline.modules.values() for part in module.parameters()}
        return sum(part.numel() for part in weights.values())

    @property
    def server_sentence(self) -> str:
        """The place of the inference server and its memory in the prediction, in words."""
        assert self.server is not None
        others = "" if not self.outline.rollout else ", except those of other weights, which the trainer generates"
        return f"generates the samples{others}; it {self.server.description}"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the loaded weights."""
        return getattr(torch, _settings_of(self.config).dtype)

    @property
    def device(self) -> torch.device:
        """The device of a process on this machine."""
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device(self.config.runtime.device or accelerator or "cpu")

    @property
    def _lora(self) -> bool:
        return _settings_of(self.config).lora is not None

    def _parts(self, engine: ShardingEngine) -> Sequence[nn.Module]:
        """The modules with sharded blocks; ZeRO-2 does not shard modules with adapters."""
        is_replicated = (
            self.num_processes == 1 or engine is ShardingEngine.GPUS or (engine is ShardingEngine.ZERO2 and self._lora)
        )
        return () if is_replicated else self.outline.sharded


def plan_processes(
    config: RunConfig,
    *,
    num_processes: int = 1,
    prompt_tokens: int = 512,
    reused: Passes | None = None,
    print_line: Callable[[str], None] = lambda _: None,
) -> ProcessPlan:
    """Meters the passes of a run's policy; passes in the cache are not metered again.

    Args:
        config: the configuration of the run.
        num_processes: number of processes that the groups are distributed over.
        prompt_tokens: length of each prompt of a language model, images included.
        reused: passes of a run that differs in its update only, whose calls without grad are not metered again.
        print_line: prints a line before each pass that is metered.

    Returns:
        The plan.

    Raises:
        ConfigError: the policy has no outline, or the run is not supported.
    """
    outline = None if config.policy is None else outline_of(config.policy.name)
    if config.policy is None or outline is None:
        name = "a live policy" if config.policy is None else f"policy {config.policy.name}"
        raise ConfigError(f"predictions of memory and time support the policies denoising and language, not {name}")
    if config.runtime.context_parallel > 1:
        raise ConfigError(
            "predictions of memory and time do not support runtime.context_parallel; remove it for the prediction"
        )
    settings = _settings_of(config)
    group_size = config.rollout.group_size
    num_rows = ceil(config.rollout.prompts_per_step / num_processes) * group_size
    policy_outline = outline(settings, prompt_tokens=prompt_tokens, group_size=group_size, num_rows=num_rows)
    copies = int(settings.lora is None and reads_reference(Algorithm.of(config)))
    server = _server_of(config)
    strategy = strategy_of(config.rollout)
    if server is not None and not strategy.weights and strategy.forgetting is None:  # the trainer samples from those
        policy_outline = replace(policy_outline, rollout=())
    return ProcessPlan(
        config=config,
        outline=policy_outline,
        passes=_passes(
            config,
            policy_outline,
            f"{settings.model_dump_json()} {prompt_tokens} {group_size} {num_rows}",
            scores=server is not None,
            reused=reused,
            print_line=print_line,
        ),
        num_copies=copies,
        num_processes=num_processes,
        prompt_tokens=prompt_tokens,
        server=server,
    )


def _server_of(config: RunConfig) -> ServerMemory | None:
    """The memory of the inference server; None: the trainer generates the samples."""
    engine = engine_of(config.rollout)
    if engine is None or isinstance(engine, SupportsServerMemory):
        return None if engine is None else engine.server_memory
    return ServerMemory(share=None, description=f"is {engine.address}, and its memory is not counted")


def _passes(
    config: RunConfig,
    outline: Outline,
    call: str,
    *,
    scores: bool,
    reused: Passes | None,
    print_line: Callable[[str], None],
) -> Passes:
    """The passes of an outline, from the cache if possible; custom model code is metered every time."""
    try:
        without_grad = scores or _forwards(config)[1] > 0
    except ConfigError:  # the time cannot be predicted then, but the memory can
        without_grad = False
    policy = config.policy
    assert policy is not None
    is_custom = is_python_target(str(policy.settings.get("model", "")))
    file = None if is_custom else cache_file(outline, f"{policy.name} {without_grad} {call}")
    cached = None if file is None else read_passes(file)
    if cached is not None:
        return cached
    passes = passes_of(outline, without_grad=without_grad, reused=reused, print_line=print_line)
    if file is not None:
        write_passes(file, passes)
    return passes


def require_shardable(config: RunConfig, engine: ShardingEngine) -> None:
    """Raises ConfigError if a run of the configuration with this distribution would."""
    quantization = config.policy.settings.get("quantization_config") if config.policy else None
    if quantization is not None and engine is not ShardingEngine.GPUS:
        raise ConfigError(
            f"policy.quantization_config: quantized weights cannot be {engine.words}; use --accelerate gpus, with all "
            "weights in each process, or load them without quantization"
        )


def scale_rows(plan: ProcessPlan, speed: MachineSpeed, engine: ShardingEngine) -> Iterator[tuple[str, str]]:
    """Rows of ``mmgrpo explain`` on memory and time per process."""
    num_processes, memory, seconds = plan.num_processes, plan.memory(engine), plan.seconds(speed, engine)
    words = engine.words if memory.update_blocks else ShardingEngine.GPUS.words
    yield "processes", f"{num_processes}, the model {words}: predicted, not measured"
    resident = memory.resident
    parts = {
        "trained": resident.trained,
        "frozen": resident.frozen,
        "buffers": resident.buffers,
        "gradients": resident.gradients,
        "moments": resident.moments,
        "average": resident.average,
        "copies": resident.copies,
        "weight sets": resident.weight_sets,
        "blocks gathered in the rollout": memory.rollout_blocks,
        "in the update": memory.update_blocks,
        "a layer from the host": memory.loaded,
        "features of media": memory.cached,
        f"rollout of {plan.outline.rollout_rows} rows": memory.rollout,
        f"scoring of {plan.outline.update_rows} rows": memory.scoring,
        f"update of {plan.outline.update_rows} rows": memory.update,
    }
    sizes = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items() if size)
    yield "memory", f"{memory.peak / GIB:.1f} GiB peak per process: {sizes}"
    times = {field.name: getattr(seconds, field.name) for field in fields(seconds)}
    durations = ", ".join(f"{name} {value:.3g}" for name, value in times.items() if value)
    excluded = "rewards" if plan.server is None else "rewards and without the server's completions"
    yield "time", f"{seconds.total:.3g} s a step without {excluded}: {durations}"
    if plan.server is not None:
        yield "server", plan.server_sentence
    yield "assumed", "; ".join((speed.words, *plan.outline.assumed))
    prompts = plan.config.rollout.prompts_per_step
    if prompts % num_processes:
        more = num_processes * ceil(prompts / num_processes)
        yield "groups", f"{prompts} do not divide by {num_processes}: rollout.prompts_per_step={more}"


def _forwards(config: RunConfig) -> tuple[float, float, float]:
    """Forwards of a row at a step: of the rollout, without grad, and with grad; for texts, a rollout counts as one."""
    settings: dict[str, Any] = _settings_of(config).model_dump()
    if "call" in settings:
        num_steps = num_steps_of(settings, "call")
        counted = (
            None
            if num_steps is None
            else forwards_per_sample(Algorithm.of(config), num_steps, num_levels_of(settings, num_steps))
        )
        if num_steps is None or counted is None or counted.rollout is None:
            raise ConfigError("predicting the time needs the number of steps: set policy.call.num_inference_steps")
        grad = counted.update.at(num_steps)
        of_sets = sum(section.updates for section in config.update.weight_sets.values()) * grad / config.update.epochs
        no_grad = (
            counted.values.at(num_steps) + counted.views.at(num_steps) + counted.weight_sets.at(num_steps) - of_sets
        )
        return counted.rollout.at(num_steps), no_grad, grad + of_sets
    objective, passes = Algorithm.of(config).objective, float(config.update.epochs)
    values = 0.0
    if objective.needs_values:
        values = passes - 1 / config.update.minibatches if objective.rollout_knows_values else passes
    no_grad = values + (passes + (0.0 if objective.separable else values)) * len(objective.views & {REFERENCE})
    return 1.0, no_grad, passes


def _settings_of(config: RunConfig) -> Any:
    policy = config.policy
    assert policy is not None
    return policy_settings(policy)
