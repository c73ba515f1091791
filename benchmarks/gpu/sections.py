"""The sections of the table, the most important first."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy

from benchmarks.gpu.colocated import colocated_rows
from benchmarks.gpu.denoising import DenoiserRun, flux_rows, sd3_rows, wan_rows
from benchmarks.gpu.flops import peak_rate
from benchmarks.gpu.flow_grpo import flow_grpo_rows
from benchmarks.gpu.language import GROUP, LanguageRun, language_rows, policy_of, vision_case
from benchmarks.gpu.models import DTYPE, LORA, Denoiser, flux, sd3
from benchmarks.gpu.quantized import quantized_rows
from benchmarks.gpu.rows import Bench, Value, allocated, lacks, peak, release, short_message
from benchmarks.language import CASES, SIDES, compare, model_and_processor, questions
from benchmarks.model import mid_size_pipeline
from benchmarks.settings import Setting
from benchmarks.timing import timed
from mmgrpo.cli.train import train_one
from mmgrpo.config.loading import load_config, validated
from mmgrpo.explain.process_scale import GIB, plan_processes
from mmgrpo.policy import Policy
from mmgrpo.testing import gradients, largest_difference, move, relative_difference, values
from mmgrpo.types import Prompt

SIDE, PRODUCTS = 8192, 20
TOTAL_S = 25 * 60
"""Seconds of a run. The budgets of the sections add up to less, but each may end late."""

OF_PACKAGES = ("_flash_3_hub", "flash")
"""Attention back ends of diffusers that need a package: ``kernels`` and the network, ``flash-attn``."""
OF_TORCH = ("_native_cudnn", "_native_flash", "_native_efficient", "native")
OF_TORCH_ON_CPU = ("_native_flash", "_native_math", "native")
IMPLEMENTATIONS = ("flash_attention_3", "flash_attention_2", "eager")
"""Attention of transformers; the first two need a package, ``flash-attn`` or ``kernels``."""
QUICKSTARTS = ("digits-image", "arithmetic-text", "digits-vlm")
_rates: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the table.

    Attributes:
        work: measures and prints its rows.
        budget_s: seconds after which it begins no further measurement.
    """

    work: Callable[[Bench], None]
    budget_s: float


def ceilings(bench: Bench) -> None:
    """Copies and matrix products on random data: the rates that everything else is a share of."""
    side = 256 if bench.tiny else SIDE
    a, b = (torch.randn(side, side, device=bench.device, dtype=DTYPE) for _ in range(2))
    source = torch.randn(side * side * 8, device=bench.device)
    target = torch.empty_like(source)
    product_s, copy_s = _each_s(bench, lambda: a @ b), _each_s(bench, lambda: target.copy_(source))
    _rates[bench.device] = 2 * side**3 / product_s
    result = {"bf16 product TFLOP/s": _rates[bench.device] / 1e12, "copy TB/s": 2 * source.nbytes / copy_s / 1e12}
    name = torch.cuda.get_device_name() if bench.device.startswith("cuda") else "CPU"
    used = {"peak TFLOP/s of MFU": _rate(bench) / 1e12, "torch": torch.__version__}
    bench.row(name, {**result, **used, "tf32 convolutions": torch.backends.cudnn.allow_tf32})


def invariance(bench: Bench) -> None:
    """Gradient and values in passes of 1, 2 and 4 rows against all rows, in float32 and bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        for name, make in (("SD3, 14 M weights", _denoiser), ("Qwen2.5-VL, 20 M weights", _vision_language)):
            with bench.case(f"{name}, {dtype}"):
                _invariance(bench, f"{name}, {dtype}", partial(make, bench, dtype))


def trainer(bench: Bench) -> None:
    """A few steps of the quickstarts by the trainer itself."""
    for name in QUICKSTARTS[: 1 if bench.tiny else None]:
        with bench.case(name), tempfile.TemporaryDirectory() as folder:
            overrides = {
                "output": f"{folder}/run",
                "steps": 2 if bench.tiny else 5,
                "update.warmup.steps": 2 if bench.tiny else 50,
                "evaluation": None,
                "runtime.device": bench.device,
            }
            overrides |= {"rollout.prompts_per_step": 2, "rollout.group_size": 2} if bench.tiny else {}
            begun = time.perf_counter()
            end = train_one(load_config(f"quickstart/{name}", overrides))
            lines = [json.loads(line) for line in (end.run / "metrics.jsonl").read_text().splitlines()]
            spent = {key: [line[key] for line in lines] for key in lines[-1] if key in TIMES}
            gaps = [line["policy/on_policy_gap"] for line in lines]
            total = {"status": end.status, "updates": len(lines), "run s": time.perf_counter() - begun}
            bench.row(name, {**total, "on-policy gaps": gaps, **spent})


TIMES = ("time/rollout_s", "time/reward_s", "time/update_s", "time/step_s")


def compiled(bench: Bench) -> None:
    """``policy.compile`` against none, on the SD3.5-M denoiser and in the decoding of Qwen2.5-VL."""
    _variants(bench, "SD3.5-M 512 px", sd3(512), {"compiled": {"compile": True}})
    for title, settings in (("plain", {}), ("compiled", {"compile": True})):
        _language_variant(bench, f"Qwen2.5-VL-3B decoding, {title}", settings)


def attention(bench: Bench) -> None:
    """Attention back ends of FLUX at 4,096 image tokens, each against the default, and of Qwen2.5-VL.

    SD3's transformer has none to select.
    """
    of_torch = OF_TORCH if bench.device.startswith("cuda") else OF_TORCH_ON_CPU
    settings = {name: {"attention": name} for name in (*OF_PACKAGES, *of_torch)}
    for name in OF_PACKAGES:
        if (reason := reason_against(bench, name)) is not None:
            bench.row(f"FLUX-dev 1024 px, {name}", {"skipped": reason})
            del settings[name]
    _variants(bench, "FLUX-dev 1024 px", flux(1024, steps=3, group=2), settings)
    _language_variant(bench, "Qwen2.5-VL-3B, the default", {})
    for name in IMPLEMENTATIONS:
        _language_variant(bench, f"Qwen2.5-VL-3B, {name}", {}, attention=name)


def reason_against(bench: Bench, name: str) -> str | None:
    """Why a back end of a package does not run here, by a small model; None if it does."""
    try:
        flux(512, more={"attention": name}).policy(bench.device, tiny=True)
    except Exception as error:  # of the package, of the network or of the device
        return short_message(error)
    return None


def memory(bench: Bench) -> None:
    """Bytes that ``mmgrpo explain`` predicts for passes, over those that the GPU allocates."""
    for title, side in (("SD3.5-M 512 px, LoRA", 512), ("SD3.5-M 1024 px, LoRA", 1024)):
        if not bench.has_time:
            return
        with bench.case(title):
            _memory(bench, title, side)


def peer(bench: Bench) -> None:
    """Steps of TRL's trainer over ours, both with transformers' generation, each in a separate process."""
    if lacks(bench, "trl"):
        return
    steps = 3 if bench.tiny else 4
    for name in ("image",) if bench.tiny else ("image-3b", "image", "text"):
        if not bench.has_time:
            bench.row(name, {"skipped": "no time left in the section"})
            continue
        with bench.case(name):
            both = compare(name, 1 if bench.tiny or name != "image-3b" else bench.rounds, steps, bench.device)
            seconds = {f"{side} s": median(both.seconds[side]) for side in SIDES}
            peaks = {f"{side} peak GiB": both.peak_mb[side] / 1024 for side in SIDES}
            bench.row(name, {"TRL / ours": both.ratios, **seconds, **peaks})


SECTIONS: dict[str, Section] = {
    "ceilings": Section(ceilings, 10),
    "language": Section(lambda bench: language_rows(bench, _rate(bench)), 110),
    "sd3": Section(lambda bench: sd3_rows(bench, _rate(bench)), 70),
    "flux": Section(lambda bench: flux_rows(bench, _rate(bench)), 70),
    "wan": Section(lambda bench: wan_rows(bench, _rate(bench)), 70),
    "invariance": Section(invariance, 30),
    "trainer": Section(trainer, 50),
    "compile": Section(compiled, 120),
    "attention": Section(attention, 150),
    "quantized": Section(quantized_rows, 120),
    "memory": Section(memory, 60),
    "flow-grpo": Section(flow_grpo_rows, 100),
    "peer": Section(peer, 200),
    "vllm": Section(colocated_rows, 260),
}


def _rate(bench: Bench) -> float:
    if bench.device not in _rates:
        _rates[bench.device] = 1e11  # of a CPU that was not measured; a GPU's is its datasheet's
    return peak_rate(bench.device, _rates[bench.device])


def _each_s(bench: Bench, work: Callable[[], Any]) -> float:
    """Median seconds of a run of ``work``, after three that are not measured."""
    for _ in range(3):
        work()
    if not bench.device.startswith("cuda"):
        return median(timed(bench.device, work).spent.wall_s for _ in range(PRODUCTS))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(PRODUCTS + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize()
    return median(a.elapsed_time(b) for a, b in pairwise(events)) / 1e3


def _denoiser(bench: Bench, dtype: torch.dtype, batch: int) -> Policy:
    setting = Setting(steps=4, group=4, batch=batch, lora=8, device=bench.device)
    pipeline = mid_size_pipeline().to(bench.device, dtype)
    torch.manual_seed(0)
    return DenoisingPolicy(pipeline, {**setting.policy, "rollout_batch": 4})


def _vision_language(bench: Bench, dtype: torch.dtype, batch: int) -> Policy:
    case = CASES["image"]
    model, processor = model_and_processor(case, bench.device)
    torch.manual_seed(0)
    room = 784 + 64 + 8 * batch  # the tokens of a shared prompt count once
    return LanguagePolicy(
        model.to(dtype), processor, {"max_new_tokens": 8, "update_tokens": room, "lora": {"rank": 8, "alpha": 16.0}}
    )


def _invariance(bench: Bench, title: str, make: Callable[[int], Policy]) -> None:
    text, image = questions(CASES["image"], 1)[0]
    policy = make(4)
    takes_images = isinstance(policy, LanguagePolicy)
    rollout = policy.rollout([Prompt(text, images=[image] if takes_images else [])], group_size=4, seed=0)
    gap = largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT)
    result: dict[str, float] = {}
    reference: list[torch.Tensor] = []
    for batch in (4, 1, 2):
        policy = make(batch)
        move(policy.trainable)  # an adapter that adds nothing passes no gradient to its first factor
        gradient = gradients(policy, rollout)
        reference = reference or gradient
        if batch != 4:
            result[f"gradient of {batch} row(s), relative"] = relative_difference(gradient, reference)
    bench.row(title, {"on-policy gap": gap, **result})


def _variants(bench: Bench, title: str, case: Denoiser, variants: dict[str, dict[str, Any]]) -> None:
    """A denoiser with each variant of its settings, alternating with none; both models are in memory."""
    plain = DenoiserRun(bench, case)
    for name, settings in variants.items():
        if not bench.has_time:
            bench.row(f"{title}, {name}", {"skipped": "no time left in the section"})
            continue
        with bench.case(f"{title}, {name}"), _clock() as clock:
            varied = DenoiserRun(bench, replace(case, more={**case.more, **settings}))
            ready_s = clock()
            for _ in range(bench.rounds):
                plain.turn(bare=False)
                varied.turn(bare=False)
            result: dict[str, Value] = {"log-prob gap": varied.gap}
            for part in ("rollout", "update"):
                plain_s, varied_s = (median(getattr(run.times, part)[-bench.rounds :]) for run in (plain, varied))
                result |= {f"{part} s": varied_s, f"faster {part}": plain_s / varied_s}
            bench.row(f"{title}, {name}", {**result, "first s": ready_s})
            del varied
        release()


def _language_variant(bench: Bench, title: str, settings: dict[str, Any], *, attention: str | None = None) -> None:
    """Generation of Qwen2.5-VL-3B; a row that says so if its attention needs a package that is missing."""
    if not bench.has_time:
        bench.row(title, {"skipped": "no time left in the section"})
        return
    case = vision_case(tiny=bench.tiny)
    with bench.case(title), _clock() as clock:
        try:
            policy = policy_of(bench, case, attention=attention, lora=LORA, **settings)
        except ImportError as error:
            bench.row(title, {"skipped": short_message(error)})
            return
        run = LanguageRun(policy, case)
        ready_s = clock()
        _generation_row(bench, title, run, ready_s)


def _generation_row(bench: Bench, title: str, run: LanguageRun, ready_s: float) -> None:
    seconds, tokens = [], 0
    for _ in range(bench.rounds):
        sampled = timed(bench.device, run.rollout)
        seconds.append(sampled.spent.wall_s)
        tokens = sum(len(sample.tokens or ()) for sample in sampled.value.samples)
    result = {"log-prob gap": run.gap, "direct call, max gap": run.direct_gap, "tokens/s": tokens / median(seconds)}
    bench.row(title, {**result, "G": GROUP, "first s": ready_s})


def _memory(bench: Bench, title: str, side: int) -> None:
    case = sd3(side)
    run = DenoiserRun(bench, case)
    call = {**run.policy.settings.call}
    policy = {
        "name": "denoising",
        "model": "python:tests.policies.tiny_policies:build_sd3" if bench.tiny else case.model,
        "dtype": "bfloat16",
        "call": call,
        "lora": LORA,
        "rollout_batch": case.rollout_batch,
        "update_batch": case.batch,
    }
    config = validated({"policy": policy, "rollout": {"prompts_per_step": 1, "group_size": case.group}})
    predicted = plan_processes(config).memory()
    before = allocated(bench.device)
    rollout, rollout_peak = peak(bench.device, lambda: run.learner.draw(case.group))
    credit = run.learner.judge(rollout)
    _, update_peak = peak(bench.device, lambda: run.learner.gradient(rollout, credit))
    update = update_peak - before - predicted.resident.gradients
    resident_bytes = predicted.resident.trained + predicted.resident.moments
    encoders = ("text_encoder", "text_encoder_2", "text_encoder_3", "vae")
    others = sum(
        p.nbytes for name in encoders for p in getattr(run.policy.pipeline, name).parameters() if not p.requires_grad
    )
    frozen = sum(p.nbytes for p in run.denoiser.parameters() if not p.requires_grad) + others
    bench.row(
        title,
        {
            "predicted update GiB": predicted.update / GIB,
            "measured update GiB": update / GIB,
            "predicted rollout GiB": predicted.rollout / GIB,
            "measured rollout GiB": (rollout_peak - before) / GIB,
            "predicted resident GiB": (resident_bytes + frozen) / GIB,
            "measured resident GiB": before / GIB,
        },
    )


@contextmanager
def _clock() -> Iterator[Callable[[], float]]:
    begun = time.perf_counter()
    yield lambda: time.perf_counter() - begun
