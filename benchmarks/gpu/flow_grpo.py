"""Iterations of flow_grpo and of mmgrpo on the same SD3.5-M shape, alternating; ``--flow-grpo FOLDER`` is a clone.

Flow-GRPO-Fast is ``scripts/train_sd3_fast.py`` with ``sd3_pipeline_with_logprob_fast``, Flow-GRPO is
``scripts/train_sd3.py`` with ``sd3_pipeline_with_logprob``. The clone's functions sample (``pipeline_with_logprob`` of
the module) and score again (``compute_log_prob`` of the script); the loop around them is that of the script, without
its loggers, data loaders and text encoders (both sides get the encodings). On both sides the steps, the guidance, the
sampler and its noise are those of the script's configuration (``geneval_sd3_fast_nocfg``, ``geneval_sd3``), with
adapters of rank 32 in float32, eight samples in one batch, the same trained steps, and one optimizer step of the
clipped loss without its KL term.

The window of Flow-GRPO-Fast is random; here it is the first three steps, which changes no cost: each step is one
forward, and steps outside of the window are deterministic on both sides. In the first update of a rollout every ratio
is 1, so the different clip ranges change nothing.

The script keeps float32 weights under bfloat16 autocast; ``bfloat16`` also measures it with frozen weights in bfloat16,
as mmgrpo keeps them. It decodes in float32; here its autoencoder runs under autocast too, which is faster.

A clone from before 14 August 2025 has no Flow-GRPO-Fast, which is a row that says so.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from benchmarks.gpu.models import DTYPE, LORA, sd3
from benchmarks.gpu.rows import Bench, Value, peak, release
from benchmarks.iteration import MAX_GRAD_NORM, PROMPTS, Learner, gap_of
from benchmarks.timing import timed
from mmgrpo.explain.process_scale import GIB
from mmgrpo.types import Plan

TARGETS = ("add_k_proj", "add_q_proj", "add_v_proj", "to_add_out", "to_k", "to_out.0", "to_q", "to_v")
NUM_STEPS = 10
PATCHES = "flow_grpo.diffusers_patch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """An iteration.

    Attributes:
        script: training script of the clone.
        module: module of the clone that samples.
        guidance: guidance scale; 1.0: none.
        num_trained: number of steps that are trained, from the first on.
        noise: noise level of the sampler.
        clip: clip range.
        settings: the script's sampler in the policy's settings.
        window: whether the other steps are deterministic (Flow-GRPO-Fast).
        group: samples.
        side: pixels of a side.
    """

    script: str
    module: str
    guidance: float
    num_trained: int
    noise: float
    clip: float
    settings: Mapping[str, Any]
    window: bool = False
    group: int = 8
    side: int = 512


GEOMETRIES = {
    "Flow-GRPO-Fast, 10 steps, 3 trained, no guidance": Geometry(
        script="scripts/train_sd3_fast.py",
        module="sd3_pipeline_with_logprob_fast",
        guidance=1.0,
        num_trained=3,
        noise=0.8,
        clip=1e-5,
        settings={"sampler": "cps", "density": "squared_error"},
        window=True,
    ),
    "Flow-GRPO, 10 steps, 9 trained, guidance 4.5": Geometry(
        script="scripts/train_sd3.py",
        module="sd3_pipeline_with_logprob",
        guidance=4.5,
        num_trained=9,
        noise=0.7,
        clip=1e-4,
        settings={"sampler": "flow_sde"},
    ),
}


def compute_log_prob_of(script: Path) -> Callable[..., Any]:
    """The function of a training script, without the script's imports.

    Args:
        script: file of the clone.

    Returns:
        ``compute_log_prob``.
    """
    step = importlib.import_module(f"{PATCHES}.sd3_sde_with_logprob").sde_step_with_logprob
    module = ast.parse(script.read_text())
    (function,) = [node for node in module.body if getattr(node, "name", "") == "compute_log_prob"]
    names: dict[str, Any] = {"torch": torch, "sde_step_with_logprob": step}
    exec(compile(ast.Module([function], []), str(script), "exec"), names)
    return names["compute_log_prob"]


class FlowGrpo:
    """The iteration of a script of flow_grpo.

    Attributes:
        denoiser: the transformer with adapters.
    """

    def __init__(self, folder: Path, bench: Bench, geometry: Geometry, frozen_dtype: torch.dtype) -> None:
        """Builds the pipeline with adapters, and the encodings.

        Args:
            folder: the clone.
            bench: device and sizes.
            geometry: the iteration.
            frozen_dtype: dtype of the frozen weights of the transformer.
        """
        sys.path.insert(0, str(folder))
        try:
            self._sample = importlib.import_module(f"{PATCHES}.{geometry.module}").pipeline_with_logprob
            self._compute_log_prob = compute_log_prob_of(folder / geometry.script)
        finally:
            sys.path.remove(str(folder))
        case = denoiser_of(geometry)
        call = case.call_of(tiny=bench.tiny)
        self._call = {name: call[name] for name in ("height", "width", "num_inference_steps")}
        self._geometry = geometry
        self._pipeline = case.pipeline(bench.device, tiny=bench.tiny)
        self._pipeline.set_progress_bar_config(disable=True)
        for module in self._pipeline.components.values():
            if isinstance(module, torch.nn.Module):
                module.requires_grad_(False)
        with torch.no_grad():
            embeds, negative, pooled, negative_pooled = self._pipeline.encode_prompt(
                PROMPTS[0].text,
                None,
                None,
                do_classifier_free_guidance=True,
                device=bench.device,
                max_sequence_length=call["max_sequence_length"],
            )
        repeated = partial(_repeated, geometry.group)
        self._embeds, self._negative = repeated(embeds), repeated(negative)
        self._pooled, self._negative_pooled = repeated(pooled), repeated(negative_pooled)
        self._pipeline.vae.to(torch.float32)
        self._pipeline.transformer.to(frozen_dtype)
        rank, alpha = int(LORA["rank"]), int(LORA["alpha"])
        lora = LoraConfig(r=rank, lora_alpha=alpha, target_modules=[f"attn.{name}" for name in TARGETS])
        self._pipeline.transformer = get_peft_model(self._pipeline.transformer, lora)
        self.denoiser: torch.nn.Module = self._pipeline.transformer
        self._parameters = [part for part in self._pipeline.transformer.parameters() if part.requires_grad]
        for parameter in self._parameters:
            parameter.data = parameter.data.float()
        self._optimizer = torch.optim.AdamW(self._parameters, lr=1e-6, weight_decay=1e-4)
        self._autocast = partial(torch.autocast, torch.device(bench.device).type, DTYPE)
        self._config = SimpleNamespace(
            train=SimpleNamespace(cfg=geometry.guidance > 1.0),
            sample=SimpleNamespace(guidance_scale=geometry.guidance, noise_level=geometry.noise, sde_type="cps"),
        )

    def rollout(self) -> dict[str, Tensor]:
        """Samples, their latents and log-probabilities, and their advantages by brightness."""
        self._pipeline.transformer.eval()
        with self._autocast(), torch.no_grad():
            images, latents, log_probs, *timesteps = self._sample(
                self._pipeline,
                prompt_embeds=self._embeds,
                pooled_prompt_embeds=self._pooled,
                negative_prompt_embeds=self._negative,
                negative_pooled_prompt_embeds=self._negative_pooled,
                guidance_scale=self._geometry.guidance,
                output_type="pt",
                noise_level=self._geometry.noise,
                **self._call,
                **self._window(),
            )
        timestep_T = torch.stack(timesteps[0]) if timesteps else self._pipeline.scheduler.timesteps
        reward_B = images.float().mean(dim=(1, 2, 3))
        latent_BTCHW = torch.stack(latents, dim=1)
        return {
            "latents": latent_BTCHW[:, :-1],
            "next_latents": latent_BTCHW[:, 1:],
            "log_probs": torch.stack(log_probs, dim=1),
            "timesteps": timestep_T.repeat(len(images), 1),
            "advantages": (reward_B - reward_B.mean()) / (reward_B.std() + 1e-4),
        }

    def _window(self) -> dict[str, Any]:
        """Arguments of Flow-GRPO-Fast: a window that is always the first steps."""
        num_trained = self._geometry.num_trained
        window = {"sde_window_size": num_trained, "sde_window_range": (0, num_trained), "sde_type": "cps"}
        return window if self._geometry.window else {}

    def update(self, sample: dict[str, Tensor]) -> float:
        """One optimizer step.

        Args:
            sample: of ``rollout``.

        Returns:
            The largest difference of a log-probability from that of the rollout.
        """
        self._pipeline.transformer.train()
        embeds, pooled, gap, clip = self._embeds, self._pooled, 0.0, self._geometry.clip
        if self._config.train.cfg:
            embeds, pooled = torch.cat([self._negative, embeds]), torch.cat([self._negative_pooled, pooled])
        for step in range(self._geometry.num_trained):
            with self._autocast():
                _, log_prob, _, _ = self._compute_log_prob(
                    self._pipeline.transformer, self._pipeline, sample, step, embeds, pooled, self._config
                )
            ratio = torch.exp(log_prob - sample["log_probs"][:, step])
            unclipped = -sample["advantages"] * ratio
            clipped = -sample["advantages"] * ratio.clamp(1.0 - clip, 1.0 + clip)
            (torch.maximum(unclipped, clipped).mean() / self._geometry.num_trained).backward()
            gap = max(gap, float((log_prob.detach() - sample["log_probs"][:, step]).abs().max()))
        torch.nn.utils.clip_grad_norm_(self._parameters, MAX_GRAD_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return gap


class Mmgrpo:
    """The same iteration here.

    Attributes:
        denoiser: the transformer with adapters.
    """

    def __init__(self, bench: Bench, geometry: Geometry) -> None:
        """Builds the policy.

        Args:
            bench: device and sizes.
            geometry: the iteration.
        """
        self._geometry = geometry
        policy = denoiser_of(geometry).policy(bench.device, tiny=bench.tiny)
        self.denoiser: torch.nn.Module = policy.pipeline.transformer
        self._learner = Learner(policy)

    def rollout(self) -> Any:
        """Samples with their log-probabilities, and their advantages."""
        plan = Plan(stochastic=tuple(range(self._geometry.num_trained)))
        rollout = self._learner.policy.rollout(PROMPTS, group_size=self._geometry.group, seed=0, plan=plan)
        return rollout, self._learner.judge(rollout)

    def update(self, sample: Any) -> float:
        """One optimizer step.

        Args:
            sample: of ``rollout``.

        Returns:
            The largest difference of a log-probability from that of the rollout.
        """
        return gap_of(self._learner.learn(*sample))


@dataclass(slots=True)
class Times:
    """Seconds of the parts of one side's iterations, its largest gap and its peak memory."""

    rollout: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)
    gap: float = 0.0
    peak: int = 0

    @property
    def iteration(self) -> list[float]:
        """Seconds of each iteration."""
        return [rollout + update for rollout, update in zip(self.rollout, self.update, strict=True)]


def denoiser_of(geometry: Geometry) -> Any:
    """SD3.5-M with the adapters of flow_grpo's script."""
    call = {
        "height": geometry.side,
        "width": geometry.side,
        "num_inference_steps": NUM_STEPS,
        "guidance_scale": geometry.guidance,
        "max_sequence_length": 128,
    }
    more = {"strength": geometry.noise, "lora": {**LORA, "targets": list(TARGETS)}, **geometry.settings}
    return sd3(geometry.side, call=call, group=geometry.group, more=more)


def iterate(bench: Bench, side: Any, times: Times) -> None:
    """One iteration of a side."""
    sampled = timed(bench.device, side.rollout)
    (updated, memory) = peak(bench.device, lambda: timed(bench.device, lambda: side.update(sampled.value)))
    times.rollout.append(sampled.spent.wall_s)
    times.update.append(updated.spent.wall_s)
    times.gap, times.peak = max(times.gap, updated.value), max(times.peak, memory)


def flow_grpo_rows(bench: Bench) -> None:
    """A row for each geometry and each dtype of flow_grpo's frozen weights."""
    folder = bench.flow_grpo
    if folder is None:
        bench.row("flow_grpo", {"skipped": "no --flow-grpo FOLDER"})
        return
    for name, geometry in GEOMETRIES.items():
        if not (folder / geometry.script).is_file():
            bench.row(name, {"skipped": f"{folder} has no {geometry.script}: clone a newer commit of flow_grpo"})
            continue
        for frozen_dtype in (torch.float32, DTYPE):
            title = f"{name}, their frozen weights in {frozen_dtype}"
            if not bench.has_time:
                bench.row(title, {"skipped": "no time left in the section"})
                continue
            with bench.case(title):
                sides = {"ours": Mmgrpo(bench, geometry), "theirs": FlowGrpo(folder, bench, geometry, frozen_dtype)}
                for side in sides.values():
                    iterate(bench, side, Times())
                times = {label: Times() for label in sides}
                for _ in range(bench.rounds):
                    for label, side in sides.items():
                        iterate(bench, side, times[label])
                bench.row(title, _values(**times))
                del sides
            release()


def _values(ours: Times, theirs: Times) -> dict[str, Value]:
    ratios = [a / b for a, b in zip(theirs.iteration, ours.iteration, strict=True)]
    return {
        "ours rollout s": median(ours.rollout),
        "ours update s": median(ours.update),
        "theirs rollout s": median(theirs.rollout),
        "theirs update s": median(theirs.update),
        "theirs / ours": ratios,
        "ours log-prob gap": ours.gap,
        "theirs log-prob gap": theirs.gap,
        "ours peak GiB update": ours.peak / GIB,
        "theirs peak GiB update": theirs.peak / GIB,
    }


def _repeated(times: int, encoding_1D: Tensor) -> Tensor:
    return encoding_1D.repeat(times, *[1] * (encoding_1D.ndim - 1))
