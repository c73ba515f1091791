"""What a person sees while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from mmgrpo.config import RunConfig
from mmgrpo.console import PlainConsole, styled
from mmgrpo.warmup import WarmupStep
from mmgrpo.watchdog import Alarm


class Progress:
    """Progress bars with the numbers that matter, and a line per evaluation; silent on all but one process."""

    def __init__(self, config: RunConfig, *, quiet: bool, step: int = 0, warmup_step: int = 0) -> None:
        """Sets the bars up.

        Args:
            config: the run.
            quiet: says nothing.
            step: GRPO steps done before.
            warmup_step: warm-up steps done before.
        """
        self._console = PlainConsole(quiet=quiet)
        self._bars = Bars(
            TextColumn("{task.description:<8}", markup=False),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[says]}", markup=False),
            console=self._console,
            disable=quiet,
        )
        self._warmup = None
        if config.warmup and not step:
            self._warmup = self._bars.add_task("warm-up", total=config.warmup.steps, completed=warmup_step, says="")
        self._train = self._bars.add_task("train", total=config.steps, completed=step, says="", start=False)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def warmed(self, done: WarmupStep) -> None:
        """After a supervised update."""
        if self._warmup is not None:
            self._bars.update(self._warmup, completed=done.step, says=f"loss {done.loss:.4f}")

    def stepped(self, line: Mapping[str, float]) -> None:
        """After a step, with the line of its last update."""
        self._bars.start_task(self._train)
        says = (
            f"reward {line['reward/mean']:.3f} ± {line['reward/std']:.3f}  "
            f"clip {line['policy/clip_low_frac']:.2f}/{line['policy/clip_high_frac']:.2f}"
        )
        if "completions/mean_length" in line:
            says += f"  tokens {line['completions/mean_length']:.0f}"
            says += f" ({line['completions/clipped_frac']:.0%} cut off)" if line["completions/clipped_frac"] else ""
        if "policy/kl_mean" in line:
            says += f"  kl {line['policy/kl_mean']:.2e}"
        self._bars.update(self._train, completed=line["step"], says=says)

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
        self._console.print(f"step {int(line['step']):>4}  {'   '.join(parts)}")

    def skipped(self, step: int, samples: Sequence[str]) -> None:
        """When an update was left out, with the samples, as GROUP.MEMBER, whose own gradient is not finite."""
        of = f"of {', '.join(samples[:8])}{', ...' if len(samples) > 8 else ''} " if samples else ""
        said = f"step {step:>4}  update skipped: the gradient {of}is not finite (skipped.jsonl)"
        self._console.print(styled(said, "yellow"))

    def alarmed(self, alarm: Alarm) -> None:
        """When the watchdog gives an alarm."""
        said = f"step {alarm.step:>4}  {alarm.kind}: {alarm.measured}; {alarm.cure}"
        self._console.print(styled("alarm", "bold red"), said)


def _values(line: Mapping[str, float], kind: str) -> dict[str, float]:
    """One kind of value of every evaluation reward, by its name."""
    found = {key.removeprefix("eval/"): value for key, value in line.items() if key.startswith("eval/")}
    return {key.removesuffix(kind): value for key, value in found.items() if key.endswith(kind)}
