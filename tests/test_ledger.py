"""The papers: derived from the files of methods and runs, and the ledger of those without a file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config.loading import shipped
from mmgrpo.docgen.methods import method_index
from mmgrpo.docgen.papers import (
    Paper,
    PaperRow,
    counts,
    ledger,
    paper_index,
    paper_section,
    papers_page,
    summary,
)
from mmgrpo.errors import ConfigError, UnknownNameError

METHODS = [row for row in method_index() if row.include.startswith("methods/")]
PAPERS = {paper.id: paper for paper in paper_index(METHODS)}
ROWS = ledger()


def test_every_method_and_run_of_a_paper_is_the_file_of_one_paper() -> None:
    files = [file for paper in PAPERS.values() for file in paper.files]
    assert sorted(files) == sorted([*(row.include for row in METHODS), *shipped("papers")])
    numbers = [paper.arxiv for paper in PAPERS.values() if paper.arxiv]
    assert len(set(numbers)) == len(numbers) > 250


def test_ledger_has_the_papers_without_a_file() -> None:
    states = [paper.state for paper in PAPERS.values()]
    assert states.count("setting") + states.count("open") == len(ROWS)
    assert {row.id for row in ROWS} == {paper.id for paper in PAPERS.values() if paper.state != "file"}
    assert len({row.title for row in ROWS}) == len(ROWS)


def test_states_add_up() -> None:
    *groups, total = [tuple(map(int, row[1:])) for row in counts(PAPERS.values())]
    assert total == tuple(map(sum, zip(*groups, strict=True)))
    assert sum(total) == len(PAPERS)


@pytest.mark.parametrize(
    ("name", "title", "files", "group", "arxiv"),
    [
        (
            "dr-grpo",
            "Understanding R1-Zero-Like Training: A Critical Perspective",
            ("methods/dr-grpo",),
            "advantages",
            "2503.20783",
        ),
        ("grpo", "DeepSeekMath: ", ("methods/grpo", "methods/process-supervision"), "advantages", "2402.03300"),
        ("dapo", "DAPO", ("methods/dapo", "methods/token-mean-grpo"), "surrogates", "2503.14476"),
    ],
)
def test_methods_with_a_number_are_the_files_of_its_paper(
    name: str, title: str, files: tuple[str, ...], group: str, arxiv: str
) -> None:
    paper = PAPERS[name]
    assert (paper.state, paper.files, paper.arxiv, paper.group) == ("file", files, arxiv, f"methods/{group}")
    assert paper.title.startswith(title)


def test_run_of_a_paper_has_its_title_number_and_deviations() -> None:
    paper = PAPERS["med-r1"]
    assert paper.title.startswith("Med-R1: Reinforcement Learning for Generalizable Medical Reasoning")
    assert (paper.files, paper.arxiv, paper.group) == (("papers/med-r1",), "2503.13939", "papers/images")
    assert (paper.num_deviations, paper.applies_to) == (4, "for tokens")
    assert PAPERS["soar"].applies_to == "for denoising policies"


def papers_with(name: str, number: str | None) -> dict[str, Paper]:
    """The papers once there is such a file of a method, and no other."""
    values = {"name": name, "title": "New", "paper": number, "applies_to": "tokens", "evidence": ("X",)}
    method = replace(METHODS[0], method=METHODS[0].method.model_copy(update=values), include="methods/new")
    return {paper.id: paper for paper in paper_index([method])}


def test_file_replaces_the_row_of_its_paper() -> None:
    assert PAPERS["cropi"].state == "open"
    paper = papers_with("cropi", "2601.00001")["cropi"]
    assert (paper.state, paper.files, paper.arxiv, paper.row) == ("file", ("methods/new",), "2601.00001", None)
    assert (paper.applies_to, paper.evidence) == ("for tokens", ("X",))


def test_number_of_a_row_decides_over_a_name() -> None:
    """A file may have the name of another paper."""
    row = PaperRow(id="dppo", title="A", tier="core", group="none", studied_on="text", adds="x", arxiv="2409.00588")
    method = replace(METHODS[0], method=METHODS[0].method.model_copy(update={"name": "dppo", "paper": "2601.00001"}))
    assert [paper.state for paper in paper_index([method], rows=[row]) if paper.id == "dppo"] == ["file", "open"]


def test_open_paper_has_its_contribution_and_its_needs() -> None:
    paper = PAPERS["hi-grpo"]
    assert paper.lacks == ("policy_other",)
    counted = summary([paper, PAPERS["mpo"], PAPERS["dr-grpo"]])
    assert counted.startswith("3 papers: 1 have a file, 0 are a setting, 2 are open, of which 1 need ")
    assert "Not supported yet: policy_other." in paper_section("hi-grpo")
    section = paper_section("recap")
    assert "Not supported yet" not in section
    assert "- needs `prompt_mixture`: " in section
    assert "Its formula has not been read yet." in paper_section("cropi")


def test_summary_counts_complete_and_partial_papers() -> None:
    papers = [PAPERS[name] for name in ("gspo", "dapo", "dr-irl", "conciser", "ar-grpo", "hi-grpo")]
    assert [paper.holds and paper.holds.split(",")[0] for paper in papers] == [
        "all", "part", "your reward", "all", "part", None,
    ]  # fmt: skip
    assert summary(papers).endswith("2 are complete, 2 are implemented in part, and 1 need a reward of yours.")
    states = [paper.holds for paper in PAPERS.values() if paper.state != "open"]
    assert None not in states
    assert PAPERS["grpo"].holds == "all"  # the most complete of its two files


def test_readme_has_the_counts_of_the_papers() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    holds = [(paper.holds or "").split(",")[0] for paper in PAPERS.values() if paper.state == "file"]
    expected = (
        f"Of {len(holds)} papers with a file {holds.count('all')} are complete, {holds.count('part')} are implemented "
        f"in part, and {holds.count('your reward')} need a reward of yours."
    )
    assert expected in readme


def test_paper_is_found_by_number_and_by_each_of_its_files() -> None:
    section = paper_section("2503.14476")
    assert section.startswith(
        "## DAPO\n\n`dapo`, for tokens and denoising policies.\narXiv:2503.14476.\n\n- methods/dapo, "
    )
    assert section == paper_section("DAPO") == paper_section("token-mean-grpo")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"id": "x", "title": "X", "tier": "core", "group": "none", "studied_on": "text", "add": "y"}',
            "line 1: .*add",
        ),
        ('{"id": "x", "title": "X", "tier": "core", "group": "round", "studied_on": "text"}', "did you mean rounds"),
        ("{", "line 1"),
    ],
)
def test_wrong_line_raises(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "papers.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=message):
        ledger(path)


def test_unknown_paper_names_those_that_hold_the_name() -> None:
    with pytest.raises(UnknownNameError, match=r"no paper 'grpo-'; there are .*grpo-guard"):
        paper_section("grpo-")
    with pytest.raises(
        UnknownNameError, match=r"no paper 'branchgrpo'; did you mean branch-grpo.*; mmgrpo methods --papers lists all"
    ):
        paper_section("branchgrpo")


def printed(*words: str) -> str:
    done = CliRunner().invoke(app, ["methods", *words], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    if "--papers" in words or "--paper" in words:
        assert all(len(line) <= 80 for line in done.output.splitlines())
    return done.output


def test_papers_on_the_command_line() -> None:
    lines = printed("--papers").splitlines()
    assert lines[0].split() == ["group", "file", "setting", "open"]
    total = next(line.split() for line in lines if line.startswith("all "))
    assert sum(map(int, total[1:])) == len(paper_index())
    robotics = printed("--papers", "--kind", "policy_robotics")
    assert "rl-100" in robotics
    assert "dr-grpo" not in robotics
    assert "Diffusion Policy Policy Optimization" in printed("--paper", "dppo")
    denoising = printed("--papers", "--policy", "denoising", "--kind", "methods/sampling")
    assert "flow-grpo" in denoising
    assert "s-grpo" not in denoising


def test_methods_are_narrowed_on_the_command_line() -> None:
    output = printed("--policy", "denoising", "--kind", "sampling")
    assert " flow-grpo " in output
    assert " gspo " not in output
    assert " gtpo " not in printed("--policy", "denoising")
    assert " gtpo " in printed("--policy", "tokens")
    wrong = CliRunner().invoke(app, ["methods", "--kind", "sampler"], env={"COLUMNS": "200"})
    assert wrong.exit_code == 2
    assert "--kind 'sampler' is unknown; use one of advantages, credit" in wrong.output


def test_page_has_a_row_per_paper() -> None:
    page = papers_page(paper_index(METHODS))
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(PAPERS)
    (row,) = [row for row in rows if row.startswith("| `gspo` |")]
    assert row.startswith("| `gspo` | [Group Sequence Policy Optimization](https://arxiv.org/abs/2507.18071) | ")
    files = "[methods/gspo](methods/ratios.md#gspo), [methods/gspo-token](methods/ratios.md#gspo-token)"
    assert re.search(rf"\| {re.escape(files)}; all; deviations: \d+ \|$", row)
    assert "## Without a file: policies in robot environments; set in policy.name\n\n`policy_robotics`" in page
