"""What a person sees while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from mmgrpo.config import RunConfig
from mmgrpo.runs.checkpoint import Place
from mmgrpo.runs.resuming import START
from mmgrpo.runs.watchdog import Alarm
from mmgrpo.system.console import PlainConsole, styled
from mmgrpo.system.display import Activity, Stage, display_of
from mmgrpo.system.pace import Pace
from mmgrpo.types import Sample

WARMUP, TRAIN = "warm-up", "train"


@dataclass(frozen=True, slots=True)
class WarmupStep:
    """One supervised update.

    Attributes:
        step: counted from 1.
        loss: mean over the whole job's batch.
        lr: learning rate used.
    """

    step: int
    loss: float
    lr: float


class Progress:
    """How far the run is, with the numbers that matter and the time left; silent on all but one process."""

    def __init__(
        self,
        config: RunConfig,
        *,
        quiet: bool,
        start: Place = START,
        num_processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
        name: str = "",
        beside: Progress | None = None,
    ) -> None:
        """Sets it up.

        Args:
            config: the run.
            quiet: says nothing.
            start: what was done before.
            num_processes: of the run; what is counted within a step is this one's share.
            clock: seconds.
            name: of the task, where the run has several.
            beside: that of another task, whose console this one shares; it is not entered itself.
        """
        self._console = beside._console if beside else PlainConsole(quiet=quiet)
        self._clock = beside._clock if beside else clock
        self._share = "" if num_processes == 1 else f" (1 of {num_processes} processes)"
        self._of_task = f"{name}: " if name else ""
        self._warmup, self._train = f"{name} {WARMUP}".strip(), name or TRAIN
        self._stages: dict[str, Stage] = beside._stages if beside else {}
        if config.warmup and not start.step:
            self._stages[self._warmup] = Stage(self._warmup, Pace(config.warmup.steps, start.warmup_step))
        self._stages[self._train] = Stage(self._train, Pace(config.steps, start.step))
        self._display = beside._display if beside else display_of(self._console, self._stages, self._clock)

    def __enter__(self) -> Progress:
        self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.stop()

    def warming(self) -> None:
        """Before the first supervised update."""
        self._stages[self._warmup].pace.begin(self._clock())

    def warmed(self, done: WarmupStep) -> None:
        """After a supervised update."""
        stage = self._stages[self._warmup]
        stage.pace.reached(done.step, self._clock())
        stage.says = f"loss {done.loss:.4f}"
        self._display.stepped(stage, every_step=False)

    def doing(
        self, what: str, total: int | None = None, *takers: Callable[[Sequence[Sample]], None]
    ) -> Callable[[Sequence[Sample]], None]:
        """Within a step, or between two.

        Args:
            what: rollout, reward, update or evaluation.
            total: how many samples it is about.
            *takers: what else takes those that are done.

        Returns:
            What takes them: it counts them, and passes them on.
        """
        now = self._clock()
        if what != "evaluation":  # the one before the first step would count as a part of each
            self._stages[self._train].pace.begin(now)
        activity = Activity(self._train, what + (self._share if total else ""), total, now)
        self._display.goes_on(activity)

        def taken(samples: Sequence[Sample]) -> None:
            activity.done += len(samples)
            self._display.goes_on(activity)
            for taker in takers:
                taker(samples)

        return taken

    def stepped(self, line: Mapping[str, float]) -> None:
        """After a step, with the line of its last update."""
        says = (
            f"reward {line['reward/mean']:.3f} ± {line['reward/std']:.3f}  "
            f"clip {line['policy/clip_low_frac']:.2f}/{line['policy/clip_high_frac']:.2f}"
        )
        if "completions/mean_length" in line:
            says += f"  tokens {line['completions/mean_length']:.0f}"
            says += f" ({line['completions/clipped_frac']:.0%} cut off)" if line["completions/clipped_frac"] else ""
        if "policy/kl_mean" in line:
            says += f"  kl {line['policy/kl_mean']:.2e}"
        stage = self._stages[self._train]
        stage.pace.reached(int(line["step"]), self._clock())
        stage.says = says
        self._display.stepped(stage, every_step=True)

    def noted(self, text: str) -> None:
        """A line of its own, as it stands."""
        self._console.say(text)

    def judged(self, line: Mapping[str, float]) -> None:
        """After an evaluation."""
        means = _values(line, "/mean").items()
        failures = _values(line, "/failed_frac").items()
        parts = [f"{name} {mean:.3f}" for name, mean in means] + [
            f"{name} failed {frac:.0%}" for name, frac in failures
        ]
        head = f"step {int(line['step']):>4}  {self._of_task}"
        self._console.say(head + self._console.folded(parts, "   ", indent=len(head)))

    def skipped(self, step: int, samples: Sequence[str]) -> None:
        """When an update was left out, with the samples, as GROUP.MEMBER, whose own gradient is not finite."""
        of = f"of {', '.join(samples[:8])}{', ...' if len(samples) > 8 else ''} " if samples else ""
        said = f"step {step:>4}  {self._of_task}update skipped: the gradient {of}is not finite (skipped.jsonl)"
        self._console.say(styled(said, "yellow"))

    def alarmed(self, alarm: Alarm) -> None:
        """When the watchdog gives an alarm."""
        head = f"step {alarm.step:>4}  {self._of_task}"
        words = f"{alarm.kind}: {alarm.measured}; {alarm.cure}".split(" ")
        said = head + self._console.folded(words, " ", indent=len("alarm ") + len(head))
        self._console.say(styled("alarm", "bold red"), said)


def _values(line: Mapping[str, float], kind: str) -> dict[str, float]:
    """One kind of value of every evaluation reward, by its name."""
    found = {key.removeprefix("eval/"): value for key, value in line.items() if key.startswith("eval/")}
    return {key.removesuffix(kind): value for key, value in found.items() if key.endswith(kind)}
