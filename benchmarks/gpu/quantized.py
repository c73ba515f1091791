"""Frozen weights in 4 bit (NF4 of bitsandbytes) under adapters, against bfloat16: time and memory.

The language model is saved to a folder and loaded by ``policy.quantization_config``, as a user's model is. The linear
layers of the denoiser are replaced in place, since saving 24 GB takes longer than measuring. Each model is alone on the
GPU, so that its peak is that of its policy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.quantization import quantized_layers

from benchmarks.gpu.denoising import DenoiserRun
from benchmarks.gpu.language import GROUP, LanguageRun, settings_of, vision_case
from benchmarks.gpu.models import LORA, flux
from benchmarks.gpu.rows import Bench, Value, allocated, lacks, peak
from benchmarks.language import Case, model_and_processor
from benchmarks.timing import timed
from mmgrpo.explain.process_scale import GIB

NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FORMATS: dict[str, dict[str, Any] | None] = {"bf16": None, "NF4": NF4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a policy needs with its weights in one format.

    Attributes:
        resident: bytes of the model and its adapters.
        rollout_s: median seconds of a rollout.
        update_s: median seconds of a gradient; of a denoiser with the optimizer's step.
        rollout_peak: largest bytes allocated in a rollout.
        update_peak: the same in an update.
        gap: largest difference of a log-probability between rollout and update.
        num_quantized: number of layers in 4 bit.
    """

    resident: int
    rollout_s: float
    update_s: float
    rollout_peak: int
    update_peak: int
    gap: float
    num_quantized: int

    def values(self, full: Measurement | None) -> dict[str, Value]:
        """Values of a row.

        Args:
            full: the measurement in bfloat16, for ratios; None: there are none.
        """
        ratios: dict[str, Value] = {}
        if full is not None:
            ratios["rollout / bf16"] = self.rollout_s / full.rollout_s
            ratios["update / bf16"] = self.update_s / full.update_s
            if full.update_peak:  # there is no allocator to ask on a CPU
                ratios["peak update / bf16"] = self.update_peak / full.update_peak
        return {
            "layers in 4 bit": self.num_quantized,
            "log-prob gap": self.gap,
            "rollout s": self.rollout_s,
            "update s": self.update_s,
            **ratios,
            "resident GiB": self.resident / GIB,
            "peak GiB rollout": self.rollout_peak / GIB,
            "peak GiB update": self.update_peak / GIB,
        }


def quantized_rows(bench: Bench) -> None:
    """A row for each model and format."""
    if lacks(bench, "bitsandbytes"):
        return
    case = vision_case(tiny=bench.tiny)
    with tempfile.TemporaryDirectory() as folder, bench.case("Qwen2.5-VL-3B, saved"):
        dtype = _save(bench, case, Path(folder))
        _rows(
            bench,
            f"Qwen2.5-VL-3B, LoRA, G={GROUP}",
            lambda name: _language(bench, case, Path(folder), dtype, FORMATS[name]),
        )
    _rows(bench, "FLUX-dev 512 px, LoRA, G=4", lambda name: _denoiser(bench, nf4=FORMATS[name] is not None))


def _rows(bench: Bench, title: str, measure: Callable[[str], Measurement]) -> None:
    full: Measurement | None = None
    for name in FORMATS:
        if not bench.has_time:
            bench.row(f"{title}, {name}", {"skipped": "no time left in the section"})
            continue
        with bench.case(f"{title}, {name}"):
            measurement = measure(name)
            bench.row(f"{title}, {name}", measurement.values(full))
            full = full or measurement


def _save(bench: Bench, case: Case, folder: Path) -> str:
    """Writes the model and its processor, and returns the name of its dtype."""
    model, processor = model_and_processor(case, bench.device)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(model.dtype).removeprefix("torch.")


def _language(bench: Bench, case: Case, folder: Path, dtype: str, quantization: dict[str, Any] | None) -> Measurement:
    device, before = bench.device, allocated(bench.device)
    source = {"model": str(folder), "dtype": dtype, "quantization_config": quantization}
    policy = LanguagePolicy.from_config(settings_of(bench, case, lora=LORA, **source), device=device)
    resident = allocated(device) - before
    run, rollouts, updates = LanguageRun(policy, case), [], []
    rollout_peak = update_peak = 0
    for turn in range(bench.rounds):
        if turn and not bench.has_time:
            break
        sampled, rollout_peak = peak(device, lambda: timed(device, run.rollout))
        updated, update_peak = peak(device, lambda: timed(device, run.gradient))
        rollouts.append(sampled.spent.wall_s)
        updates.append(updated.spent.wall_s)
    return Measurement(
        resident=resident,
        rollout_s=median(rollouts),
        update_s=median(updates),
        rollout_peak=rollout_peak,
        update_peak=update_peak,
        gap=run.gap,
        num_quantized=len(quantized_layers(policy.model)),
    )


def _denoiser(bench: Bench, *, nf4: bool) -> Measurement:
    before = allocated(bench.device)
    run = DenoiserRun(bench, flux(512, nf4=nf4))
    resident = run.resident - before
    for turn in range(bench.rounds):
        if turn == 0 or bench.has_time:
            run.turn(bare=False)
    return Measurement(
        resident=resident,
        rollout_s=median(run.times.rollout),
        update_s=median(run.times.update),
        rollout_peak=run.rollout_peak,
        update_peak=run.update_peak,
        gap=run.gap,
        num_quantized=len(quantized_layers(run.denoiser)),
    )
