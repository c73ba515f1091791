"""Predictions of ``mmgrpo explain --processes 1`` and measurements: ``python -m benchmarks.prediction_error``.

Held bytes are compared with live weights, gradients and moments; peaks with the size of live tensors during a
rollout and an update; seconds with wall time, predicted from the measured speed of the machine (``explain --measure``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import validated
from mmgrpo.explain.memory_meter import MemoryMeter
from mmgrpo.explain.operator_times import MachineSpeed, measured_speed
from mmgrpo.explain.process_scale import plan_processes
from mmgrpo.maths.aggregates import count
from mmgrpo.policy import Policy
from mmgrpo.training.gradients import accumulate_gradient
from mmgrpo.types import Prompt

GROUP, STEPS, LENGTH, LONGER = 4, 4, 16, 64
LORA = {"rank": 4, "alpha": 8.0}
MODELS: dict[str, dict[str, Any]] = {
    "denoising": {
        "name": "denoising",
        "model": "python:benchmarks.model:mid_size_pipeline",
        "call": {
            "height": 64,
            "width": 64,
            "num_inference_steps": STEPS,
            "guidance_scale": 1.0,
            "max_sequence_length": 51,
        },
        "rollout_batch": GROUP,
        "update_batch": GROUP,
    },
    "language, 0.3 M": {
        "name": "language",
        "model": "python:mmgrpo.examples.language_models:arithmetic_lm",
        "max_new_tokens": LENGTH,
        "rollout_batch": GROUP,
    },
    "language, 11 M": {
        "name": "language",
        "model": "python:benchmarks.prediction_error:text_model",
        "max_new_tokens": LONGER,
        "rollout_batch": GROUP,
    },
}


def main() -> None:
    """Prints a table of predicted and measured numbers, and of their relative errors."""
    torch.set_num_threads(1)
    machine = measured_speed(torch.float32, device=torch.device("cpu"), link_gb_s=1.0)
    print(f"one thread: {machine.words}\n")
    print("| case | number | predicted | measured | error |\n| --- | --- | --- | --- | --- |")
    for kind in MODELS:
        for lora in (LORA, None):
            for checkpointing in (False, True):
                name = f"{kind}, {'LoRA' if lora else 'all weights'}{', checkpointing' if checkpointing else ''}"
                for line in compared(kind, lora, checkpointing, machine):
                    print(f"| {name} | {line} |", flush=True)


def text_model() -> tuple[Any, Any]:
    """A Llama of 16,384 tokens, of which one would end an answer."""
    from benchmarks.language import CASES, model_and_processor

    return model_and_processor(CASES["text"])


def compared(kind: str, lora: dict[str, Any] | None, checkpointing: bool, machine: MachineSpeed) -> Iterator[str]:
    """Lines of one case."""
    settings = {**MODELS[kind], "lora": lora, "gradient_checkpointing": checkpointing}
    config = validated({"policy": settings, "rollout": {"prompts_per_step": 1, "group_size": GROUP}})
    named = {key: value for key, value in settings.items() if key != "name"}
    policy = (DenoisingPolicy if kind == "denoising" else LanguagePolicy).from_config(named)
    prompt = Prompt("one seven")
    rollout = policy.rollout([prompt], group_size=GROUP, seed=0)  # the first trial of paths is not measured
    length = rollout.trace.prompts[0].length if isinstance(policy, LanguagePolicy) else 1
    plan = plan_processes(config, prompt_tokens=length)
    memory, seconds = plan.memory(), plan.seconds(machine)
    modules = policy.pipeline.components.values() if isinstance(policy, DenoisingPolicy) else [policy.model]
    parameters = {id(p): p for m in modules if isinstance(m, torch.nn.Module) for p in m.parameters()}
    optimizer = torch.optim.AdamW(policy.trainable, lr=0.0)
    for parameter in policy.trainable:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [*parameters.values(), *states, *(p.grad for p in policy.trainable if p.grad is not None)]
    parameter_bytes = memory.resident.total - memory.resident.buffers
    yield _line("bytes held", parameter_bytes, sum(tensor.nbytes for tensor in tensors))
    with MemoryMeter(tensors) as meter:
        policy.rollout([prompt], group_size=GROUP, seed=1)
    yield _line("peak of the rollout", memory.rollout, meter.peak)
    _learn(policy, config, rollout)
    with MemoryMeter(tensors) as meter:
        _learn(policy, config, rollout)
    yield _line("peak of the update", memory.update, meter.peak)
    spent = min(_seconds(lambda: policy.rollout([prompt], group_size=GROUP, seed=2)) for _ in range(3))
    yield _line("seconds of the rollout", seconds.rollout, spent)
    spent = min(_seconds(lambda: _learn(policy, config, rollout)) for _ in range(3))
    yield _line("seconds of the update", seconds.update, spent)
    spent = min(_seconds(optimizer.step) for _ in range(3))
    yield _line("seconds of the optimizer", seconds.optimizer, spent)


def _learn(policy: Policy, config: RunConfig, rollout: Any) -> None:
    objective = Algorithm.of(config).objective
    advantage_BT = torch.linspace(-1, 1, GROUP)[:, None].expand(rollout.shape)
    totals = count(rollout.mask_BT)
    accumulate_gradient(policy, rollout, advantage_BT, objective, rows=range(GROUP), totals=totals)


def _seconds(call: Any) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _line(name: str, predicted: float, measured: float) -> str:
    return f"{name} | {predicted:,.4g} | {measured:,.4g} | {100 * (predicted / measured - 1):+.0f} %"


if __name__ == "__main__":
    main()
