"""``mmgrpo compare``: trains methods on one task and compares them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from mmgrpo.errors import ConfigError
from mmgrpo.trials.trial_plan import Comparison, plan_comparison, write_configurations


def compare_methods(
    methods: Sequence[str],
    on: str,
    *,
    num_seeds: int,
    num_jobs: int,
    out: Path | None,
    print_line: Callable[[str], None],
) -> tuple[Path | None, bool]:
    """Runs the remaining runs of a comparison and writes its page.

    Args:
        methods: methods, and overrides ``a.b=c`` among them.
        on: the task.
        num_seeds: number of seeds.
        num_jobs: number of runs at a time.
        out: folder of the comparison; None: ``comparisons/TASK``.
        print_line: prints a line.

    Returns:
        The page, None if no run has ended; and whether a run failed.

    Raises:
        ConfigError: there is no method, or a configuration is wrong.
        DataError: the folder holds a comparison with other settings.
        ComparisonInterrupted: a signal ended the comparison.
    """
    overrides = [argument for argument in methods if "=" in argument]
    method_names = [argument for argument in methods if "=" not in argument]
    if not method_names:
        raise ConfigError("compare needs at least one method, such as grpo; mmgrpo methods lists them")
    root = (out or Path("comparisons") / Path(on).stem).absolute()
    comparison = plan_comparison(method_names, on, num_seeds=num_seeds, overrides=overrides, root=root)
    write_configurations(comparison)
    print_line(_plan_text(comparison))
    from mmgrpo.trials.run_trials import ComparisonRunner

    failed = ComparisonRunner(num_jobs=num_jobs, print_line=print_line).carry_out(comparison)
    return _page(comparison, _command(method_names, comparison, num_seeds), num_jobs), bool(failed)


def _plan_text(comparison: Comparison) -> str:
    shared = f" after {len(comparison.warmups)} shared warm-ups" if comparison.warmups else ""
    return f"{len(comparison.methods)} methods, {len(comparison.trials)} runs{shared}, in {comparison.root}"


def _command(names: Sequence[str], comparison: Comparison, num_seeds: int) -> str:
    parts = [*names, *comparison.overrides, "--on", comparison.on, "--seeds", str(num_seeds)]
    return f"mmgrpo compare {shlex.join(parts)}"


def _page(comparison: Comparison, command: str, num_jobs: int) -> Path | None:
    from mmgrpo.report.method_comparison import MethodRuns, write_methods
    from mmgrpo.runs.folder import has_ended

    members = [
        MethodRuns(
            name=method,
            folders=tuple(
                trial.folder if has_ended(trial.folder) else None
                for trial in comparison.trials
                if trial.method == method
            ),
        )
        for method in comparison.methods
    ]
    if not any(path for member in members for path in member.folders):
        return None
    return write_methods(comparison.on, command, members, comparison.root, num_jobs=num_jobs)
