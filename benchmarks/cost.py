"""The cost of a change: seconds of a step of short runs of this tree and of another commit, alternating.

python -m benchmarks.cost BASE [--configs quickstart/digits-image ...] [--steps 12] [--repeat 4] [--set key=value ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

from benchmarks.no_change import QUICKSTARTS, ROOT, SHORTENED, checked_out, for_tasks, train
from benchmarks.timing import spread

LEARNING = (*SHORTENED, "update.warmup.steps=300")  # so much that rewards differ and every step has something to learn

HEADER = f"{'config':28} {'here s':>8} {'there s':>8}  {'ratio (min - max)':24} {'best':>6}"
LEGEND = """\
here, there: median seconds of a step over all runs, the first of each run left out.
ratio: median over the turns of the runs' medians, here / there; best: of the fastest step of either."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs and prints."""
    options = _parser().parse_args(arguments)
    overrides = [*LEARNING, f"steps={options.steps}", *options.set]
    print(f"this tree and {options.base}, {options.repeat} turns: {' '.join(overrides)}\n{HEADER}")
    with checked_out(options.base) as base:
        for config in options.configs:
            shared = for_tasks(config, overrides)
            turns = [
                (train(ROOT, config, shared).seconds[1:], train(base, config, shared).seconds[1:])
                for _ in range(options.repeat)
            ]
            print(_table_row(config, turns), flush=True)
    print(LEGEND)


def _table_row(config: str, turns: Sequence[tuple[Sequence[float], Sequence[float]]]) -> str:
    here, base_s = ([second for turn in turns for second in turn[side]] for side in (0, 1))
    ratio = spread([median(current_s) / median(other) for current_s, other in turns])
    ratio_range = f"{ratio.median:.3f} ({ratio.low:.3f} - {ratio.high:.3f})"
    return f"{config:28} {median(here):8.3f} {median(base_s):8.3f}  {ratio_range:24} {min(here) / min(base_s):6.3f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--configs", nargs="+", default=QUICKSTARTS, help="files or shipped names")
    parser.add_argument("--steps", type=int, default=12, help="of each run; at least 2")
    parser.add_argument("--repeat", type=int, default=4, help="turns, a run of each tree")
    parser.add_argument("--set", nargs="*", default=[], help="further overrides, a.b=c, for both")
    return parser


if __name__ == "__main__":
    main()
