"""Methods side by side: each number of the table by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmgrpo.report.method_comparison import MethodRuns, write_methods
from mmgrpo.report.seed_stats import Difference, SeedMean, difference, over_seeds
from tests.report.browser import BROWSERS, browser, layouts
from tests.report.folder import write_lines
from tests.report.page import Page
from tests.report.test_texts import write_texts

HOSTILE = "<script>alert(1)</script>"


def write_seed(run: Path, *, accuracy: float, reward: float, per_sample: float = 3.0) -> Path:
    """Four steps of two updates and 10 samples: 1 s of rollout, half a second of rewards, two of updates."""
    once = {"reward/mean": reward, "time/rollout_s": 1.0, "time/reward_s": 0.5, "samples/distinct_frac": 0.25}
    lines = [
        {
            "step": step,
            "update": update,
            **once,
            "reward/mean": reward * step / 4,
            "time/update_s": 1.0,
            "count/samples": 10,
            "count/forwards_per_sample": per_sample + update,
        }
        for step in (1, 2, 3, 4)
        for update in (0, 1)
    ]
    write_lines(run / "metrics.jsonl", lines)
    write_lines(run / "evaluation.jsonl", [{"step": 0, "eval/held/mean": 0.5}, {"step": 4, "eval/held/mean": accuracy}])
    (run / "run.json").write_text(json.dumps({"status": "finished", "started": "2026-11-22T10:00:00+00:00"}))
    return run


@pytest.fixture
def members(tmp_path: Path) -> list[MethodRuns]:
    """Of the seeds the first method reaches 0.6, 0.7, 0.8, the second 0.2 more, and 0.21 and 0.19."""
    ends = {"plain": (0.6, 0.7, 0.8), f"other{HOSTILE}": (0.8, 0.91, 0.99)}
    return [
        MethodRuns(
            name=name,
            folders=tuple(
                write_seed(tmp_path / f"{number}-{seed}", accuracy=end, reward=1.0, per_sample=3.0 + number)
                for seed, end in enumerate(result)
            ),
        )
        for number, (name, result) in enumerate(ends.items())
    ]


def written(members: list[MethodRuns], folder: Path) -> Page:
    page = Page(write_methods("quickstart/x", "mmgrpo compare", members, folder).read_text(encoding="utf-8"))
    assert page.open == []
    return page


def test_the_table(members: list[MethodRuns], tmp_path: Path) -> None:
    """0.6, 0.7, 0.8 deviate by 0.1; differences 0.2, 0.21, 0.19 by 0.01, times 4.303 / sqrt 3."""
    written(members, tmp_path)
    head, _, plain, other, _, legend = (tmp_path / "comparison.md").read_text(encoding="utf-8").splitlines()
    assert head == "| method | held | held against plain | reward | diversity | forwards | time |"
    assert plain == "| plain | 0.500 → 0.700 ± 0.100 |  | 1.000 ± 0.000 | 0.250 ± 0.000 | 160 | 14 s |"
    assert "| +0.200 ± 0.025, beyond noise |" in other
    assert other.endswith("| 200 | 14 s |")
    assert legend.startswith("± of a measure is one sample deviation over the seeds; ± of a difference from the")


def test_times_on_shared_cores_are_marked(members: list[MethodRuns], tmp_path: Path) -> None:
    note = "Times were measured with 4 runs at a time on one machine."
    for num_jobs in (1, 4):
        page = write_methods("quickstart/x", "mmgrpo compare", members, tmp_path, num_jobs=num_jobs)
        for text in (page.read_text(encoding="utf-8"), (tmp_path / "comparison.md").read_text(encoding="utf-8")):
            assert (note in text) == (num_jobs == 4)


def test_numbers_for_programs(members: list[MethodRuns], tmp_path: Path) -> None:
    written(members, tmp_path)
    result = json.loads((tmp_path / "comparison.json").read_text())["plain"]
    assert (result["held"], result["held at first"]) == ([0.6, 0.7, 0.8], [0.5] * 3)
    assert (result["forwards"], result["seconds"], result["reward"]) == ([160.0] * 3, [14.0] * 3, [1.0] * 3)


def test_the_page_has_every_axis_and_is_no_ones_script(members: list[MethodRuns], tmp_path: Path) -> None:
    page = written(members, tmp_path)
    heads = page.texts("h2")
    assert [heads[0], *heads[2:5]] == [
        "Results",
        "held, held out",
        "Reward against updates",
        "Reward against forwards",
    ]
    assert HOSTILE in "".join(page.texts("th"))
    assert HOSTILE not in (tmp_path / "comparison.html").read_text(encoding="utf-8")


def test_an_unfinished_run_is_marked(members: list[MethodRuns], tmp_path: Path) -> None:
    cut = [members[0], MethodRuns(name="cut", folders=(members[1].folders[0], None, None))]
    page = written(cut, tmp_path)
    assert "cut: 2 of 3 runs did not end" in "".join(page.texts("p"))
    assert "+0.200 (no interval)" in (tmp_path / "comparison.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("values", "others", "expected", "is_beyond"),
    [
        ([1.0, 3.0], [0.0, 0.0], Difference(2.0, 12.706), False),
        ([1.0, None, 3.0, 2.0], [0.0, 5.0, 0.0, 0.0], Difference(2.0, 4.303 / 3**0.5), False),
        ([2.0], [0.5], Difference(1.5, None), False),
        ([2.0, 2.0], [1.0, 1.0], Difference(1.0, None), False),
    ],
)
def test_difference(values: list[float], others: list[float], expected: Difference, is_beyond: bool) -> None:
    result = difference(values, others)
    assert result is not None
    assert result.mean == pytest.approx(expected.mean)
    assert result.half == (None if expected.half is None else pytest.approx(expected.half))
    assert result.is_beyond_noise is is_beyond


def test_curves_are_means_over_seeds() -> None:
    result = over_seeds([{1: 1.0, 2: 2.0}, {1: 3.0, 2: 2.0, 3: 9.0}], "m", [{1: 10.0, 2: 20.0}, {1: 14.0, 2: 26.0}])
    assert result.points == ((12.0, 2.0), (23.0, 2.0))
    assert result.spread == pytest.approx((2**0.5, 0.0))
    assert SeedMean.of([]) is None


@pytest.mark.nightly
@pytest.mark.skipif(browser() is None, reason=f"none of {', '.join(BROWSERS)}")
def test_no_text_is_cut(members: list[MethodRuns], tmp_path: Path) -> None:
    page = write_methods("quickstart/x", "mmgrpo compare", members, tmp_path)
    result = layouts(page, (390, 1000, 1920), tmp_path)
    assert {layout.width: (layout.cut, layout.overhang) for layout in result} == dict.fromkeys(
        (390, 1000, 1920), ([], 0)
    )


def test_the_same_requests_are_displayed_under_each_method(tmp_path: Path) -> None:
    """Of the first seed that most methods finished: here the second, which the first method did not miss."""
    for name, answer in (("plain-1", "3"), ("other-0", "0"), ("other-1", "7")):
        write_texts(write_seed(tmp_path / name, accuracy=0.5, reward=1.0), "step-000004", [[answer]])
    members = [
        MethodRuns(name="plain", folders=(None, tmp_path / "plain-1")),
        MethodRuns(name="other", folders=(tmp_path / "other-0", tmp_path / "other-1")),
    ]
    page = Page(write_methods("task", "mmgrpo compare", members, tmp_path).read_text())
    assert page.texts("p", "label") == ["plain", "other"]
    answers = page.texts("p", "wrote")
    assert [text[-1] for text in answers] == ["3", "7"]


def test_methods_without_samples_have_no_section_of_requests(members: list[MethodRuns], tmp_path: Path) -> None:
    page = Page(write_methods("task", "mmgrpo compare", members, tmp_path).read_text())
    assert "The same requests" not in page.texts("h2")
