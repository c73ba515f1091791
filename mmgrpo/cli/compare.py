"""``mmgrpo compare``: methods on one task, run and put side by side."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from mmgrpo.errors import ConfigError
from mmgrpo.trials.trial_plan import Comparison, plan_comparison, write_configurations


def compared(
    methods: Sequence[str],
    on: str,
    *,
    num_seeds: int,
    num_jobs: int,
    out: Path | None,
    say: Callable[[str], None],
) -> tuple[Path | None, bool]:
    """Runs what is left of a comparison and writes its page.

    Args:
        methods: what is compared, and overrides ``a.b=c`` among them.
        on: the task.
        num_seeds: how many seeds.
        num_jobs: how many runs at a time.
        out: the comparison's folder; None: ``comparisons/TASK``.
        say: is given lines to print.

    Returns:
        The page, None if no run has ended; and whether a run failed.

    Raises:
        ConfigError: no method is given, or a configuration is wrong.
        DataError: the folder holds a comparison with other settings.
        ComparisonInterrupted: a signal cut it off.
    """
    overrides = [one for one in methods if "=" in one]
    names = [one for one in methods if "=" not in one]
    if not names:
        raise ConfigError("compare needs a method at least, such as grpo; mmgrpo methods lists them")
    root = (out or Path("comparisons") / Path(on).stem).absolute()
    comparison = plan_comparison(names, on, num_seeds=num_seeds, overrides=overrides, root=root)
    write_configurations(comparison)
    say(_course(comparison))
    from mmgrpo.trials.run_trials import ComparisonRunner

    failed = ComparisonRunner(num_jobs=num_jobs, say=say).carry_out(comparison)
    return _page(comparison, _command(names, comparison, num_seeds), num_jobs), bool(failed)


def _course(comparison: Comparison) -> str:
    shared = f" after {len(comparison.warmups)} warm-ups that they share" if comparison.warmups else ""
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
    if not any(path for one in members for path in one.folders):
        return None
    return write_methods(comparison.on, command, members, comparison.root, num_jobs=num_jobs)
