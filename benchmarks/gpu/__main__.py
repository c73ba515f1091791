"""The table of one GPU, by one command: ``python -m benchmarks.gpu [--only NAME ...] [--into DIR] [--tiny]``.

Models of published shapes with random weights in bfloat16; every section has a time budget, prints its rows at once,
and does not end the run when it fails. The run ends after 25 minutes, which the budgets are made for on an H200. Parts
that need a package or an argument that is missing are rows that name it. ``--tiny`` runs the command on a CPU in
minutes, with tiny models of the same classes.

Sections:
    ceilings: rates of matrix products and copies.
    language: Qwen2.5-VL-3B, adapters and all weights: exactness, speed against direct calls, memory.
    sd3, flux, wan: SD3.5-M, FLUX.1-dev and Wan 2.1 1.3B: exactness, speed against bare passes, memory.
    invariance: gradients in passes of 1, 2 and 4 rows.
    trainer: quickstarts by the trainer.
    compile: ``policy.compile`` of SD3.5-M and of decoding.
    attention: back ends of FLUX, flash attention 3 first (``pip install kernels``), and of Qwen2.5-VL-3B.
    quantized: adapters on NF4 weights of bitsandbytes against bfloat16, of Qwen2.5-VL-3B and FLUX.1-dev.
    memory: bytes that ``mmgrpo explain`` predicts, and those allocated.
    flow-grpo: Flow-GRPO-Fast and Flow-GRPO by their authors' functions; ``--flow-grpo CLONE``.
    peer: TRL's trainer.
    vllm: a vLLM server on the trainer's GPU that sleeps during updates; ``--vllm-python PATH``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu.rows import Bench
from benchmarks.gpu.sections import SECTIONS, TOTAL_S


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the sections.

    Args:
        arguments: of the command line; None: those of the process.

    Returns:
        The exit code: 1 if a section or a case failed.
    """
    options = _parser().parse_args(arguments)
    if options.into:
        options.into.mkdir(parents=True, exist_ok=True)
    file = options.into / "rows.jsonl" if options.into else None
    bench = Bench(
        device=options.device,
        tiny=options.tiny,
        rounds=options.rounds,
        file=file,
        flow_grpo=options.flow_grpo,
        vllm_python=options.vllm_python,
        total_s=options.budget_factor * TOTAL_S,
    )
    print("| section | case | measured |\n| --- | --- | --- |", flush=True)
    for name in options.only or [name for name in SECTIONS if name not in options.skip]:
        bench.run(name, SECTIONS[name].work, budget_s=options.budget_factor * SECTIONS[name].budget_s)
    print(f"failed: {', '.join(bench.failed) or 'nothing'}", flush=True)
    return int(bool(bench.failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("benchmarks.gpu", description="The table of one GPU.")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections, in this order")
    parser.add_argument("--skip", nargs="+", choices=SECTIONS, default=(), help="all sections but these")
    parser.add_argument("--into", type=Path, help="folder of rows.jsonl")
    parser.add_argument("--flow-grpo", type=Path, help="a clone of yifan123/flow_grpo, which is measured too")
    parser.add_argument("--vllm-python", type=Path, help="Python of an environment with vLLM, which is measured too")
    parser.add_argument("--tiny", action="store_true", help="tiny models of the same classes")
    parser.add_argument("--rounds", type=int, default=2, help="turns of a comparison")
    parser.add_argument("--budget-factor", type=float, default=1.0, help="factor on the time budgets; on a CPU say 10")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
