"""The output on the console."""

from __future__ import annotations

import os
import pty
import re
import select
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from mmgrpo.config.loading import validated
from mmgrpo.runs.checkpoint import RunPosition
from mmgrpo.runs.progress import RunProgress, WarmupStep
from mmgrpo.system.console import PlainConsole
from mmgrpo.system.display import BarDisplay
from mmgrpo.system.pace import Pace, clock_text
from mmgrpo.types import Prompt, Sample

LINE = {
    "step": 4,
    "reward/mean": 0.51234,
    "reward/std": 0.25,
    "policy/clip_low_frac": 0.01,
    "policy/clip_high_frac": 0.02,
    "completions/mean_length": 12345.0,
    "completions/clipped_frac": 0.375,
    "policy/kl_mean": 1.2345e-4,
}
SAYS = "reward 0.512 ± 0.250  clip 0.01/0.02  tokens 12345 (38% cut off)  kl 1.23e-04"
SAMPLES = [Sample(Prompt("x"), 0, member, text="a") for member in range(320)]


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal of 80 columns as stdout; reading from it gives the text on its screen."""
    reader, writer = pty.openpty()
    os.set_blocking(reader, False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(writer, "w") as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", stream)
        yield reader
    os.close(reader)


def all_of(reader: int) -> str:
    """What was written to the terminal, which hands it on in portions."""
    screen = b""
    while select.select([reader], [], [], 1.0)[0]:
        screen += os.read(reader, 100_000)
    return screen.decode()


def viewed(progress: RunProgress) -> list[str]:
    """The bars on the screen."""
    bars: Any = progress._display
    assert isinstance(bars, BarDisplay)
    console = PlainConsole()
    console.width = 80
    with console.capture() as printed:
        console.print(bars.view())
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in printed.get().splitlines()]


def test_an_evaluation_is_a_line_of_means_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    line = {
        "step": 10,
        "eval/right/mean": 0.9375,
        "eval/right/std": 0.2,
        "eval/judge/mean": 21.5,
        "eval/judge/std": 1.0,
        "eval/judge/failed_frac": 0.25,
        "time/evaluation_s": 3.0,
    }
    RunProgress(validated({}), quiet=False).log_evaluation(line)
    assert capsys.readouterr().out == "step   10  right 0.938   judge 21.500   judge failed 25%\n"
    RunProgress(validated({}), quiet=True).log_evaluation(line)
    assert capsys.readouterr().out == ""


class TestPace:
    def test_time_left_is_the_mean_of_the_last_steps_less_the_passed_time(self) -> None:
        pace = Pace(100, 10)
        assert pace.remaining_s(5.0) is None
        pace.start(0.0)
        assert pace.remaining_s(5.0) is None
        pace.record(11, 40.0)
        assert pace.remaining_s(40.0) == 40 * 89  # one step of 40 s, 89 to go
        assert pace.remaining_s(50.0) == 40 * 89 - 10
        pace.record(12, 60.0)
        assert pace.remaining_s(60.0) == 30 * 88  # two steps of 30 s on average
        assert (pace.elapsed_s(70.0), pace.last_s()) == (70.0, 20.0)

    def test_old_slow_steps_do_not_count(self) -> None:
        pace = Pace(100)
        pace.start(0.0)
        for step in range(1, 31):
            pace.record(step, 1000.0 + step)  # the first, of 1001 s, is not among the last 20
        assert pace.remaining_s(1030.0) == 70.0

    @pytest.mark.parametrize(
        ("seconds", "lines"), [(None, "-:--:--"), (59.6, "0:01:00"), (3725, "1:02:05"), (90000, "1 d 1:00:00")]
    )
    def test_clock(self, seconds: float | None, lines: str) -> None:
        assert clock_text(seconds) == lines


class TestLines:
    """Not a terminal: one plain line a step, and within long ones a line every half minute."""

    def progress(self, clock: Clock, **options: Any) -> RunProgress:
        return RunProgress(
            validated({"steps": 60}), quiet=False, start=RunPosition(step=3, warmup_step=0), clock=clock, **options
        )

    def test_a_line_a_step_with_the_time_left(self, capsys: pytest.CaptureFixture[str]) -> None:
        clock = Clock()
        with self.progress(clock) as progress:
            progress.track("rollout", 1152)
            clock.now_s += 12.5
            progress.log_step(LINE)
            progress.track("rollout", 1152)
            clock.now_s += 10.5
            progress.log_step({name: value for name, value in LINE.items() if "reward" not in name} | {"step": 5})
        assert capsys.readouterr().out.splitlines() == [
            f"train 4 of 60  {SAYS}  12.5 s  left 0:11:40",  # 56 * 12.5 s
            f"train 5 of 60  {SAYS.partition('  ')[2]}  10.5 s  left 0:10:32",  # 55 * 11.5 s; no row has a reward
        ]

    def test_within_a_long_step_the_phase_is_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        clock, passed_on = Clock(), []
        progress = self.progress(clock)
        taken = progress.track("rollout", 1152, passed_on.extend)
        clock.now_s += 20
        taken(SAMPLES[:100])
        clock.now_s += 15
        taken(SAMPLES[100:])
        clock.now_s += 30
        progress.track("reward")
        progress.track("update 1 of 2")
        clock.now_s += 31
        progress.track("update 2 of 2")
        assert passed_on == SAMPLES
        assert capsys.readouterr().out.splitlines() == [
            "train 3 of 60 done: rollout 320 of 1,152, 0:00:35",
            "train 3 of 60 done: reward, 0:00:00",
            "train 3 of 60 done: update 2 of 2, 0:00:00",
        ]

    def test_each_process_counts_its_share(self, capsys: pytest.CaptureFixture[str]) -> None:
        clock = Clock()
        taken = self.progress(clock, num_processes=4).track("evaluation", 90)
        clock.now_s += 30
        taken(SAMPLES[:7])
        assert capsys.readouterr().out == ("train 3 of 60 done: evaluation (1 of 4 processes) 7 of 90, 0:00:30\n")

    def test_a_warm_up_of_short_steps_takes_ten_lines(self, capsys: pytest.CaptureFixture[str]) -> None:
        clock = Clock()
        config = {"steps": 2, "update": {"warmup": {"examples": "careless_sums", "steps": 1500}}}
        progress = RunProgress(validated(config), quiet=False, clock=clock)
        progress.start_warmup()
        for step in range(1, 1501):
            clock.now_s += 0.1 if step != 1000 else 60
            progress.log_warmup_step(WarmupStep(step, 1 / step, 0.1))
        lines = capsys.readouterr().out.splitlines()
        assert lines[:2] == [
            "warm-up 1 of 1,500  loss 1.0000  left 0:02:30",
            "warm-up 150 of 1,500  loss 0.0067  left 0:02:15",
        ]
        assert [line.split()[1] for line in lines] == [
            "1", "150", "300", "450", "600", "750", "900", "1,000", "1,050", "1,200", "1,350", "1,500"
        ]  # fmt: skip

    def test_forced_colors_do_not_change_a_file(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        clock = Clock()
        with self.progress(clock) as progress:
            progress.track("rollout")
            clock.now_s += 2
            progress.log_step(LINE)
        assert capsys.readouterr().out == f"train 4 of 60  {SAYS}  2.0 s  left 0:01:52\n"


class TestBars:
    """A terminal of 80 columns, on which nothing is cut."""

    def test_the_numbers_of_texts_are_complete_under_the_bar(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with terminal(monkeypatch):
            clock = Clock()
            progress = RunProgress(
                validated({"steps": 50_000}), quiet=False, start=RunPosition(step=3, warmup_step=0), clock=clock
            )
            taken = progress.track("rollout", 1152)
            clock.now_s += 45
            assert viewed(progress)[0].split()[2:] == ["3/50,000", "0:00:45", "left", "-:--:--"]
            progress.log_step(LINE)
            taken = progress.track("rollout", 1152)
            taken(SAMPLES)
            clock.now_s += 5
            lines = viewed(progress)
            assert max(map(len, lines)) <= 80
            bar, *under = lines
            assert bar.startswith("train ━")
            assert bar.split()[2:] == ["4/50,000", "0:00:50", "left", "26", "d", "0:56:55"]  # 49,996 * 45 s - 5 s
            assert " ".join(" ".join(under).split()) == " ".join(f"{SAYS} rollout 320 of 1,152, 0:00:05".split())

    def test_both_stages_have_their_bar_and_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with terminal(monkeypatch):
            clock = Clock()
            config = {"steps": 10, "update": {"warmup": {"examples": "careless_sums", "steps": 4}}}
            progress = RunProgress(validated(config), quiet=False, clock=clock)
            progress.start_warmup()
            clock.now_s += 8
            progress.log_warmup_step(WarmupStep(1, 0.5, 0.1))
            clock.now_s += 4
            lines = viewed(progress)
            assert [line.split()[-4:] for line in lines[:2]] == [
                ["1/4", "0:00:12", "left", "0:00:20"],  # three steps of 8 s, 4 s of which have passed
                ["0/10", "0:00:00", "left", "-:--:--"],
            ]
            assert lines[2:] == ["loss 0.5000"]

    @pytest.mark.nightly
    def test_no_number_of_an_evaluation_is_broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        line = {"step": 10.0} | {f"eval/{name}_accuracy/mean": 0.5 for name in ("held_out", "first", "second", "third")}
        with terminal(monkeypatch) as reader:
            RunProgress(validated({"steps": 60}), quiet=False).log_evaluation(line)
            screen = all_of(reader).splitlines()
        # 11 columns before, 23 + 3 + 20 + 3 + 21 of them: 81 are more than 80
        assert screen == [
            "step   10  held_out_accuracy 0.500   first_accuracy 0.500",
            "           second_accuracy 0.500   third_accuracy 0.500",
        ]

    @pytest.mark.nightly
    def test_the_terminal_shows_the_view(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with terminal(monkeypatch) as reader:
            with RunProgress(
                validated({"steps": 60}), quiet=False, start=RunPosition(step=3, warmup_step=0), clock=Clock()
            ) as progress:
                progress.log_step(LINE)
                progress.print_line("a line of its own")
            screen = all_of(reader)
            assert "a line of its own" in screen
            assert "4/60" in screen
            assert "kl 1.23e-04" in screen
            assert "…" not in screen


def test_piped_tables_are_wide_enough_for_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert PlainConsole().width == 160
    monkeypatch.setenv("COLUMNS", "90")
    assert PlainConsole().width == 90
