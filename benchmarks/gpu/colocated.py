"""vLLM on the trainer's GPU, against the trainer's generation; ``--vllm-python PATH`` is the Python of its environment.

The server sleeps between rollouts (``rollout.engine.sleep``), and the weights get to it by ``ipc``, then by ``files``.
vLLM has neither on a CPU: there the server stays awake, and reads files.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from mmgrpo.policies.engines.vllm import VllmEngine
from mmgrpo.policies.engines.weight_transfer import Transfer
from mmgrpo.policies.language import LanguagePolicy

from benchmarks.gpu.language import GROUP, learner_of, policy_of, vision_case
from benchmarks.gpu.models import LORA
from benchmarks.gpu.rows import Bench, Value, peak, release
from benchmarks.iteration import Learner, gap_of
from benchmarks.language import Case
from benchmarks.timing import timed
from mmgrpo.explain.process_scale import GIB
from mmgrpo.policy import EngineContext
from mmgrpo.types import Rollout
from mmgrpo.values import SAMPLER_LOGPROB

START_S = 240.0
OPTIONS = ("--max-model-len", "2048", "--limit-mm-per-prompt", '{"image": 1, "video": 0}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How the server is started.

    Attributes:
        transfers: ways of the weights, a row each.
        sleep: whether the server sleeps between rollouts.
        options: of its command.
        variables: of its environment.
    """

    transfers: tuple[Transfer, ...]
    sleep: bool
    options: tuple[str, ...]
    variables: Mapping[str, str]


GPU = Server(
    transfers=("ipc", "files"),
    sleep=True,
    options=("--gpu-memory-utilization", "0.35", *OPTIONS),
    variables={},
)
CPU = Server(
    transfers=("files",),
    sleep=False,
    options=("--enforce-eager", *OPTIONS),
    variables={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
)


def colocated_rows(bench: Bench) -> None:
    """A row of the trainer's generation, and one for each transfer."""
    if bench.vllm_python is None:
        bench.row("vLLM", {"skipped": "no --vllm-python PATH of an environment with vLLM (docs/how-to/engines.md)"})
        return
    case, server = vision_case(tiny=bench.tiny), GPU if bench.device.startswith("cuda") else CPU
    title = f"Qwen2.5-VL-3B, LoRA, G={GROUP}"
    with bench.case(f"{title}, the trainer's generation"):
        policy = policy_of(bench, case, lora=LORA)
        bench.row(f"{title}, the trainer's generation", _turns(bench, learner_of(policy, case)))
        del policy
    for transfer in server.transfers:
        name = f"{title}, vLLM, {transfer}"
        if not bench.has_time:
            bench.row(name, {"skipped": "no time left in the section"})
            continue
        release()
        with bench.case(name):
            bench.row(name, _served(bench, case, server, transfer))


def _served(bench: Bench, case: Case, server: Server, transfer: Transfer) -> dict[str, Value]:
    engine = VllmEngine(
        python=str(bench.vllm_python),
        options=server.options,
        variables=server.variables,
        start_timeout_s=START_S,
        transfer=transfer,
        sleep=server.sleep,
    )
    policy: LanguagePolicy = policy_of(bench, case, lora=LORA)
    release()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        context = EngineContext(log=Path(folder) / "engine.log", is_main=True, run_on_main=lambda work: work())
        with recorded_loads(engine) as loads, policy.use_engine(engine, context):
            start: dict[str, Value] = {"start s": time.perf_counter() - begun, **_used(bench, "awake")}
            turns = _turns(bench, learner_of(policy, case))
            asleep = _used(bench, "asleep") if server.sleep else {}
    return {**turns, "of it weights s": median(loads[-bench.rounds :]), **start, **asleep, "sleep": server.sleep}


def _turns(bench: Bench, learner: Learner) -> dict[str, Value]:
    """Iterations with an update of the weights, after one that is not measured."""
    device = bench.device
    rollouts, updates, gap = [], [], 0.0
    rollout_peak = update_peak = num_tokens = 0
    differences: list[torch.Tensor] = []
    for turn in range(bench.rounds + 1):
        sampled, rollout_peak = peak(device, lambda: timed(device, lambda: learner.draw(GROUP)))
        rollout = sampled.value
        learn = partial(learner.learn, rollout, learner.judge(rollout))
        updated, update_peak = peak(device, partial(timed, device, learn))
        gap = max(gap, gap_of(updated.value))
        differences += _differences(rollout)
        if turn:
            rollouts.append(sampled.spent.wall_s)
            updates.append(updated.spent.wall_s)
            num_tokens = sum(len(sample.tokens or ()) for sample in rollout.samples)
    return {
        "log-prob gap": gap,
        **_mismatch(differences),
        "rollout s": median(rollouts),
        "tokens/s": num_tokens / median(rollouts),
        "update s": median(updates),
        "peak GiB rollout": rollout_peak / GIB,
        "peak GiB update": update_peak / GIB,
    }


def _differences(rollout: Rollout) -> list[torch.Tensor]:
    """Absolute differences between the log-probabilities of server and trainer; none without a server."""
    if SAMPLER_LOGPROB not in rollout.values:
        return []
    return [(rollout.values[SAMPLER_LOGPROB] - rollout.old_logprob_BT)[rollout.mask_BT].abs()]


def _mismatch(differences: list[torch.Tensor]) -> dict[str, Value]:
    if not differences:
        return {}
    difference_M = torch.cat(differences)
    return {"mismatch mean": float(difference_M.mean()), "mismatch max": float(difference_M.max())}


def _used(bench: Bench, state: str) -> dict[str, Value]:
    """Memory of the GPU that all processes use; empty on a CPU."""
    if not bench.device.startswith("cuda"):
        return {}
    release()
    free, total = torch.cuda.mem_get_info(bench.device)
    return {f"GPU GiB in use, server {state}": (total - free) / GIB}


@contextmanager
def recorded_loads(engine: Any) -> Iterator[list[float]]:
    """The seconds of each transfer of weights in the context; a rollout whose weights the server has needs none."""
    seconds: list[float] = []
    load = engine.load_weights

    def recording(*args: Any, **kwargs: Any) -> None:
        begun = time.perf_counter()
        load(*args, **kwargs)
        seconds.append(time.perf_counter() - begun)

    engine.load_weights = recording
    try:
        yield seconds
    finally:
        del engine.load_weights
