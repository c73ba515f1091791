"""Denoising policies: exactness of the ratio, speed against bare passes, share of the GPU's peak, memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from mmgrpo.policies.diffusion import DenoisingPolicy

from benchmarks.gpu.bare import BarePasses, recorded_decodes
from benchmarks.gpu.flops import counted, denoiser_forward
from benchmarks.gpu.models import DTYPE, Denoiser, flux, sd3, wan
from benchmarks.gpu.rows import Bench, Value, allocated, peak
from benchmarks.iteration import Learner, gap_of
from benchmarks.timing import timed
from mmgrpo.explain.process_scale import GIB
from mmgrpo.training.compute_advantages import SampleAdvantages
from mmgrpo.training.gradients import Gradient
from mmgrpo.types import Rollout


@dataclass(slots=True)
class Times:
    """Seconds of the turns, ours and bare.

    Attributes:
        rollout: of the rollout.
        bare_rollout: of its passes and its decoding.
        update: of the gradient and the optimizer's step.
        bare_update: of the same passes and the optimizer's step.
    """

    rollout: list[float] = field(default_factory=list)
    bare_rollout: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)
    bare_update: list[float] = field(default_factory=list)


class DenoiserRun:
    """A denoising policy on the device, warmed up by one iteration.

    Attributes:
        times: seconds of its turns.
        gap: largest difference of a log-probability between rollout and update.
        resident: bytes allocated once the policy is built.
        rollout_peak: largest bytes allocated in a rollout.
        update_peak: the same in an update.
        before_update: bytes allocated before an update.
    """

    def __init__(self, bench: Bench, case: Denoiser) -> None:
        """Builds the policy and runs one iteration, in which replay is checked and kernels are chosen."""
        self._bench, self._case = bench, case
        self.policy: DenoisingPolicy = case.policy(bench.device, tiny=bench.tiny)
        self.resident = allocated(bench.device)
        self.learner = Learner(self.policy)
        self.denoiser = self.policy.pipeline.transformer
        self.times = Times()
        autocast = None if case.lora else DTYPE
        self._forwards = BarePasses(self.denoiser, autocast=autocast)
        self._backwards = BarePasses(self.denoiser, autocast=autocast)
        rollout, self._latents = self._draw_recorded()
        credit = self.learner.judge(rollout)
        self._gradient(rollout, credit)
        self.learner.apply_gradient()
        rollout, self._latents = self._draw_recorded()
        with self._backwards.recording():
            gradient = self._gradient(rollout, credit)
        self.learner.apply_gradient()
        self.gap = gap_of(gradient)
        self.rollout_peak = self.update_peak = self.before_update = 0

    def turn(self, *, bare: bool = True) -> None:
        """A rollout and an update, each followed by its bare passes unless ``bare`` is False."""
        device, times = self._bench.device, self.times
        sampled, self.rollout_peak = peak(device, lambda: timed(device, self._draw))
        times.rollout.append(sampled.spent.wall_s)
        if bare:
            times.bare_rollout.append(timed(device, self._bare_rollout).spent.wall_s)
        credit = self.learner.judge(sampled.value)
        self.before_update = allocated(device)
        updated, self.update_peak = peak(device, lambda: timed(device, lambda: self._learn(sampled.value, credit)))
        self.gap = max(self.gap, gap_of(updated.value))
        times.update.append(updated.spent.wall_s)
        if bare:
            times.bare_update.append(timed(device, self._bare_update).spent.wall_s)

    def values(self, peak_rate: float) -> dict[str, Value]:
        """Values of a row.

        Args:
            peak_rate: operations per second that the update's are a share of.
        """
        times, group = self.times, self._case.group
        rollout_s, update_s = median(times.rollout), median(times.update)
        passes = 2 if self._case.lora else 3
        update_flops = passes * sum(denoiser_forward(self.denoiser, kwargs) for _, kwargs in self._backwards.calls)
        bare_s = median(times.bare_update)
        return {
            "log-prob gap": self.gap,
            "ratio - 1": math.expm1(self.gap),
            "rollout s": rollout_s,
            "samples/s": group / rollout_s,
            "update s": update_s,
            "rollout / bare": [a / b for a, b in zip(times.rollout, times.bare_rollout, strict=True)],
            "update / bare": [a / b for a, b in zip(times.update, times.bare_update, strict=True)],
            "update MFU": update_flops / update_s / peak_rate,
            "bare MFU": update_flops / bare_s / peak_rate,
            "forwards": len(self._forwards.calls),
            "backwards": len(self._backwards.calls),
            "peak GiB rollout": self.rollout_peak / GIB,
            "peak GiB update": self.update_peak / GIB,
        }

    def formula_over_counted(self) -> float:
        """Operations of one recorded forward by formula, over those that torch counts."""
        args, kwargs = self._forwards.calls[0]
        bare = BarePasses(self.denoiser, autocast=None if self._case.lora else DTYPE)
        bare.calls = [(args, kwargs)]
        return denoiser_forward(self.denoiser, kwargs) / counted(bare.forward)

    def _draw(self) -> Rollout:
        return self.learner.draw(self._case.group)

    def _draw_recorded(self) -> tuple[Rollout, list[Any]]:
        with self._forwards.recording(), recorded_decodes(self.policy.pipeline.vae) as latents:
            return self._draw(), latents

    def _gradient(self, rollout: Rollout, credit: SampleAdvantages) -> Gradient:
        return self.learner.gradient(rollout, credit)

    def _learn(self, rollout: Rollout, credit: SampleAdvantages) -> Gradient:
        return self.learner.learn(rollout, credit)

    def _bare_rollout(self) -> None:
        self._forwards.forward()
        with torch.no_grad():
            for latent in self._latents:
                self.policy.pipeline.vae.decode(latent, return_dict=False)

    def _bare_update(self) -> None:
        self._backwards.backward()
        self.learner.apply_gradient()


def run_case(bench: Bench, name: str, case: Denoiser, peak_rate: float, notes: Mapping[str, Value]) -> None:
    """A row of a case: turns as long as there is time, at least one."""
    if not bench.has_time:
        bench.row(name, {"skipped": "no time left in the section"})
        return
    with bench.case(name):
        run = DenoiserRun(bench, case)
        for turn in range(bench.rounds):
            if turn == 0 or bench.has_time:
                run.turn()
        choices = "; ".join(run.policy.resolved_settings)
        counts = {"formula / counted": run.formula_over_counted()}
        bench.row(name, {**run.values(peak_rate), **counts, **notes, "choices": choices or "none"})


def sd3_rows(bench: Bench, peak_rate: float) -> None:
    """Stable Diffusion 3.5 Medium: adapters at two sizes, and every weight."""
    notes: dict[str, Value] = {"guidance": "none", "text encoders": "2 layers"}
    run_case(bench, "SD3.5-M 512 px, LoRA, G=8", sd3(512), peak_rate, notes)
    run_case(bench, "SD3.5-M 1024 px, LoRA, G=8", sd3(1024, steps=4), peak_rate, notes)
    run_case(bench, "SD3.5-M 512 px, all weights, G=8", sd3(512, lora=False, batch=4), peak_rate, notes)


def flux_rows(bench: Bench, peak_rate: float) -> None:
    """FLUX.1-dev with adapters."""
    notes: dict[str, Value] = {"checkpointing": True, "text encoders": "1 or 2 layers"}
    run_case(bench, "FLUX-dev 512 px, LoRA, G=4", flux(512), peak_rate, notes)
    run_case(bench, "FLUX-dev 1024 px, LoRA, G=4", flux(1024, steps=3), peak_rate, notes)


def wan_rows(bench: Bench, peak_rate: float) -> None:
    """Wan 2.1 1.3B with adapters."""
    notes: dict[str, Value] = {"checkpointing": True, "guidance": "none", "text encoders": "1 layer"}
    run_case(bench, "Wan 1.3B 832x480, 33 frames, LoRA, G=2", wan(), peak_rate, notes)
