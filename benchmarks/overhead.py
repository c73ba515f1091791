"""Seconds of a training iteration compared with its bare denoiser passes, alternating in one run.

python -m benchmarks.overhead [--steps 4] [--group 4] [--repeat 5] [--threads 1] [--device cpu] [--profile] ...
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from benchmarks.measuring import Line, lines_of, measure
from benchmarks.model import IMAGE_TOKENS, TEXT_TOKENS
from benchmarks.profiling import profiles
from benchmarks.settings import Setting

HEADER = (
    f"{'noise':12}{'part':10} {'calls':>5} {'rows':>5} {'floor':>5}  {'ratio (min - max)':22} "
    f"{'cpu ratio (min - max)':22} {'best':>5} {'over %':>6}  {'alone %':>7} {'ms/call':>7}  {'decode %':>8}"
)
LEGEND = """\
ratio: ours / floor, median over the repeats, by wall time; cpu ratio: by processor time, best: of the fastest repeat;
over %: excess of the cpu ratio over 1.
rows: denoiser rows of one sample, as the engine counts them, and of the floor.
alone: iteration with a denoiser that costs nothing, less the autoencoder; in % of the floor and ms per pipeline call.
decode: the autoencoder's share of the floor."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    setting = Setting(
        steps=options.steps,
        group=options.group,
        batch=options.batch,
        guidance=options.guidance,
        lora=options.lora,
        device=options.device,
        dtype=options.dtype,
    )
    print(
        f"{options.steps} steps, one group of {options.group}, batches of {options.batch}, "
        f"guidance {options.guidance:g}, "
        f"{f'LoRA of rank {options.lora}' if options.lora else 'all weights'}, {options.dtype} on {options.device}, "
        f"{options.threads} thread(s), {IMAGE_TOKENS} image and {TEXT_TOKENS} text tokens"
    )
    if options.profile:
        _print_profile(setting)
    else:
        _print_table(setting, options.repeat)


def _print_table(setting: Setting, repeat: int) -> None:
    print(f"medians of {repeat} repeats\n{HEADER}")
    for same_initial_noise, turns in measure(setting, repeat=repeat).items():
        for line in lines_of(setting.sharing(same_initial_noise), turns):
            print(_table_row("shared" if same_initial_noise else "independent", line))
    print(LEGEND)


def _print_profile(setting: Setting) -> None:
    for profile in profiles(setting):
        print(f"\n{profile.part}: {profile.ms:.1f} ms a pipeline call outside the denoiser and the autoencoder")
        for group, share in profile.shares.items():
            print(f"  {group:24}{100 * share:6.1f} %{profile.ms * share:8.2f} ms")


def _table_row(noise: str, line: Line) -> str:
    wall, cpu = (f"{s.median:.3f} ({s.low:.3f} - {s.high:.3f})" for s in (line.wall, line.cpu))
    return (
        f"{noise:12}{line.part:10} {line.calls:5} {line.rows:5} {line.floor_rows:5}  {wall:22} {cpu:22} "
        f"{line.best:5.3f} {100 * (line.cpu.median - 1):6.1f}  {100 * line.hollow_frac:7.1f} {line.hollow_ms:7.1f}  "
        f"{100 * line.decode_frac:8.1f}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("benchmarks.overhead", description="The engine's overhead over bare passes.")
    parser.add_argument("--steps", type=int, default=4, help="denoising steps, at least 2")
    parser.add_argument("--group", type=int, default=4, help="samples of the one prompt")
    parser.add_argument("--batch", type=int, default=8, help="rows of a pipeline call")
    parser.add_argument("--guidance", type=float, default=1.0, help="above 1 doubles every pass")
    parser.add_argument("--lora", type=int, default=0, help="rank of the adapters; 0 trains every weight")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--profile", action="store_true", help="where the overhead goes, instead of how much it is")
    return parser


if __name__ == "__main__":
    main()
