"""The console output of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from mmgrpo.config import RunConfig
from mmgrpo.runs.alerts import Alert
from mmgrpo.runs.checkpoint import RunPosition
from mmgrpo.runs.resuming import START
from mmgrpo.system.console import PlainConsole, styled
from mmgrpo.system.display import Activity, ProgressStage, make_display
from mmgrpo.system.pace import Pace
from mmgrpo.types import Sample

WARMUP, TRAIN = "warm-up", "train"


@dataclass(frozen=True, slots=True)
class WarmupStep:
    """One supervised update.

    Attributes:
        step: step from 1.
        loss: mean over the job's batch.
        lr: learning rate of the update.
    """

    step: int
    loss: float
    lr: float


class RunProgress:
    """Progress bars, main metrics and remaining time of a run; prints on one process only."""

    def __init__(
        self,
        config: RunConfig,
        *,
        quiet: bool,
        start: RunPosition = START,
        num_processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
        name: str = "",
        parent: RunProgress | None = None,
    ) -> None:
        """Prints nothing yet.

        Args:
            config: the run's configuration.
            quiet: prints nothing at all.
            start: position at which the run starts.
            num_processes: number of processes; counts within a step are this process's share.
            clock: returns seconds.
            name: name of the task, if the run has several.
            parent: progress of another task, whose console this one shares; then this one is not entered.
        """
        self._console = parent._console if parent else PlainConsole(quiet=quiet)
        self._clock = parent._clock if parent else clock
        self._share = "" if num_processes == 1 else f" (1 of {num_processes} processes)"
        self._task_prefix = f"{name}: " if name else ""
        self._warmup, self._train = f"{name} {WARMUP}".strip(), name or TRAIN
        self._stages: dict[str, ProgressStage] = parent._stages if parent else {}
        if config.update.warmup and not start.step:
            self._stages[self._warmup] = ProgressStage(
                self._warmup, Pace(config.update.warmup.steps, start.warmup_step)
            )
        self._stages[self._train] = ProgressStage(self._train, Pace(config.steps, start.step))
        self._display = parent._display if parent else make_display(self._console, self._stages, self._clock)

    def __enter__(self) -> RunProgress:
        self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.stop()

    def start_warmup(self) -> None:
        """Starts the clock of the warm-up, before the first supervised update."""
        self._stages[self._warmup].pace.start(self._clock())

    def log_warmup_step(self, step: WarmupStep) -> None:
        """Shows a supervised update."""
        stage = self._stages[self._warmup]
        stage.pace.record(step.step, self._clock())
        stage.text = f"loss {step.loss:.4f}"
        self._display.show_step(stage, every_step=False)

    def track(
        self, phase: str, total: int | None = None, *callbacks: Callable[[Sequence[Sample]], None]
    ) -> Callable[[Sequence[Sample]], None]:
        """Shows a phase within a step, or between two.

        Args:
            phase: rollout, reward, update or evaluation.
            total: number of samples of the phase.
            *callbacks: further functions to call with finished samples.

        Returns:
            A function to call with finished samples; it counts them and calls the callbacks.
        """
        now = self._clock()
        if phase != "evaluation":  # the evaluation before the first step would count towards every step
            self._stages[self._train].pace.start(now)
        activity = Activity(self._train, phase + (self._share if total else ""), total, now)
        self._display.show_activity(activity)

        def on_samples(samples: Sequence[Sample]) -> None:
            activity.done += len(samples)
            self._display.show_activity(activity)
            for callback in callbacks:
                callback(samples)

        return on_samples

    def log_step(self, line: Mapping[str, float]) -> None:
        """Shows a step, from the line of its last update."""
        text = f"reward {line['reward/mean']:.3f} ± {line['reward/std']:.3f}  " if "reward/mean" in line else ""
        text += f"clip {line['policy/clip_low_frac']:.2f}/{line['policy/clip_high_frac']:.2f}"
        if "completions/mean_length" in line:
            text += f"  tokens {line['completions/mean_length']:.0f}"
            text += f" ({line['completions/clipped_frac']:.0%} cut off)" if line["completions/clipped_frac"] else ""
        if "policy/kl_mean" in line:
            text += f"  kl {line['policy/kl_mean']:.2e}"
        stage = self._stages[self._train]
        stage.pace.record(int(line["step"]), self._clock())
        stage.text = text
        self._display.show_step(stage, every_step=True)

    def print_line(self, text: str) -> None:
        """Prints a line."""
        self._console.print_line(text)

    def log_evaluation(self, line: Mapping[str, float]) -> None:
        """Prints the means of an evaluation."""
        means = _values(line, "/mean").items()
        failures = _values(line, "/failed_frac").items()
        parts = [f"{name} {mean:.3f}" for name, mean in means] + [
            f"{name} failed {frac:.0%}" for name, frac in failures
        ]
        head = f"step {int(line['step']):>4}  {self._task_prefix}"
        self._console.print_line(head + self._console.wrap(parts, "   ", indent=len(head)))

    def log_skipped_update(self, step: int, samples: Sequence[str]) -> None:
        """Prints that an update was skipped, with the samples (GROUP.MEMBER) whose gradient is not finite."""
        of = f"of {', '.join(samples[:8])}{', ...' if len(samples) > 8 else ''} " if samples else ""
        text = f"step {step:>4}  {self._task_prefix}update skipped: the gradient {of}is not finite (skipped.jsonl)"
        self._console.print_line(styled(text, "yellow"))

    def log_alert(self, alert: Alert) -> None:
        """Prints an alert of the watchdog."""
        head = f"step {alert.step:>4}  {self._task_prefix}"
        words = f"{alert.kind}: {alert.measured}; {alert.suggested_fix}".split(" ")
        text = head + self._console.wrap(words, " ", indent=len("alert ") + len(head))
        self._console.print_line(styled("alert", "bold red"), text)


def _values(line: Mapping[str, float], kind: str) -> dict[str, float]:
    """Returns one kind of value of every evaluation reward, by reward name."""
    values = {key.removeprefix("eval/"): value for key, value in line.items() if key.startswith("eval/")}
    return {key.removesuffix(kind): value for key, value in values.items() if key.endswith(kind)}
