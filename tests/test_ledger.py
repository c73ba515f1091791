"""The ledger of papers: whole, true of the files that there are, and its page current."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.docgen.methods import method_index
from mmgrpo.docgen.papers import (
    Paper,
    counts,
    ledger,
    paper_index,
    paper_section,
    papers_page,
    summary,
    unlisted,
)
from mmgrpo.errors import ConfigError, UnknownNameError

METHODS = [row for row in method_index() if row.include.startswith("methods/")]
PAPERS = {paper.row.id: paper for paper in paper_index(METHODS)}
ROWS = ledger()


def test_ledger_is_complete() -> None:
    """189 core papers, 130 recipes and 70 extensions were looked at."""
    assert len({row.id for row in ROWS}) == len(ROWS) == 389
    assert len({row.title for row in ROWS}) == 389
    assert [sum(row.tier == tier for row in ROWS) for tier in ("core", "recipe", "extension")] == [189, 130, 70]


def test_states_add_up() -> None:
    *groups, whole = [tuple(map(int, row[1:])) for row in counts(PAPERS.values())]
    assert whole == tuple(map(sum, zip(*groups, strict=True)))
    assert [sum(row[:3]) for row in groups] == [sum(row[3:]) for row in groups]
    assert whole[:3] == (189, 130, 70)
    assert whole[3:] == tuple(sum(p.state == state for p in PAPERS.values()) for state in ("file", "setting", "open"))


@pytest.mark.parametrize(
    ("name", "files", "arxiv"),
    [
        ("dr-grpo", ("methods/dr-grpo",), "2503.20783"),  # by its name
        ("branchgrpo", ("methods/branch-grpo",), "2509.06040"),  # by its number
        ("grpo--deepseekmath-pushing", ("methods/grpo", "methods/process-supervision"), "2402.03300"),
        ("gui-r1", ("recipes/qwen2.5-vl-gui",), ""),  # as its row says
    ],
)
def test_files_of_a_paper(name: str, files: tuple[str, ...], arxiv: str) -> None:
    paper = PAPERS[name]
    assert (paper.state, set(files) <= set(paper.files), paper.arxiv) == ("file", True, arxiv)


def with_file(name: str, number: str) -> Paper:
    """The paper of that id once there is such a file, and no other."""
    said = {"name": name, "paper": number, "applies_to": "tokens", "evidence": ("X",)}
    method = replace(METHODS[0], method=METHODS[0].method.model_copy(update=said), include="methods/new")
    return {paper.row.id: paper for paper in paper_index([method])}[name]


def test_file_closes_its_row() -> None:
    assert PAPERS["cropi"].state == "open"
    paper = with_file("cropi", "2601.00001")
    assert (paper.state, paper.files, paper.arxiv) == ("file", ("methods/new",), "2601.00001")
    assert (paper.applies_to, paper.evidence) == ("for tokens", ("X",))


def test_number_of_a_row_decides_over_a_name() -> None:
    """A file that is called as the paper is, but is of another."""
    assert with_file("dcpo", "2601.00001").state == "open"
    assert with_file("dcpo", "2509.02333").state == "file"


def test_open_papers_state_their_requirements() -> None:
    paper = PAPERS["hi-grpo"]
    assert paper.lacks == ("policy_other",)
    counted = summary([paper, PAPERS["mpo"], PAPERS["dr-grpo"]])
    assert counted.startswith("3 papers: 1 have a file, 0 are a setting, 2 are open, of which 1 need ")
    assert "Not supported yet: policy_other." in paper_section("hi-grpo")
    section = paper_section("dppo")
    assert "Not supported yet" not in section
    assert "- needs `decision_numbers`: Bounds and weights of single decisions; set in objective.modulations" in section
    assert "Its formula has not been read yet." in paper_section("cropi")
    assert paper_section("2503.20783") == paper_section("dr-grpo")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            '{"id": "x", "title": "X", "tier": "core", "group": "none", "studied_on": "text", "add": "y"}',
            "line 1: .*add",
        ),
        ('{"id": "x", "title": "X", "tier": "core", "group": "round", "studied_on": "text"}', "did you mean rounds"),
        ("{", "line 1"),
    ],
)
def test_wrong_line_raises(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "papers.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=said):
        ledger(path)


def test_unknown_paper_names_those_that_hold_the_name() -> None:
    with pytest.raises(UnknownNameError, match=r"no paper 'spo'; there are .*spo--single-stream"):
        paper_section("spo")
    with pytest.raises(UnknownNameError, match="methods --papers lists them"):
        paper_section("nothing-like-it")


def test_method_outside_of_the_ledger_is_found_by_any_of_its_names() -> None:
    for name in ("dapo", "DAPO", "2503.14476"):
        assert paper_section(name) == ("## DAPO\n\n`methods/dapo`: DAPO, arXiv:2503.14476, is not in the survey.\n")


def shown(*words: str) -> str:
    done = CliRunner().invoke(app, ["methods", *words], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert all(len(line) <= 80 for line in done.output.splitlines())
    return done.output


def test_papers_on_the_command_line() -> None:
    lines = shown("--papers").splitlines()
    assert lines[0].split() == ["group", "core", "recipe", "extension", "file", "setting", "open"]
    total = next(line.split() for line in lines if line.startswith("all "))
    assert total[1:4] == ["189", "130", "70"]
    one = shown("--papers", "--kind", "policy_robotics")
    assert "rl-100" in one
    assert "dr-grpo" not in one
    assert "Diffusion Policy Policy Optimization" in shown("--paper", "dppo")
    drawn = shown("--papers", "--applies-to", "denoising", "--kind", "none")
    assert "flow-grpo" in drawn
    assert "brorl" not in drawn


def test_methods_are_narrowed_on_the_command_line() -> None:
    drawn = shown("--applies-to", "denoising", "--kind", "sampling")
    assert " flow-grpo " in drawn
    assert " gspo " not in drawn
    assert " gtpo " not in shown("--applies-to", "denoising")
    assert " gtpo " in shown("--applies-to", "tokens")
    wrong = CliRunner().invoke(app, ["methods", "--kind", "sampler"], env={"COLUMNS": "200"})
    assert wrong.exit_code == 2
    assert "--kind 'sampler' is unknown; use one of advantages, credit" in wrong.output


def test_page_has_a_row_per_paper_and_the_files_of_other_papers() -> None:
    papers = paper_index(METHODS)
    page = papers_page(papers, unlisted(papers, METHODS))
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == 389
    assert (
        "| `gspo` | [Group Sequence Policy Optimization](https://arxiv.org/abs/2507.18071) | core | methods/gspo |"
        in rows
    )
    assert "- `methods/cispo`: CISPO, arXiv:2506.13585" in page.partition("## Other papers")[2]
