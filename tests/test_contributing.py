"""The files for contributors agree with the project: paths, commands of README.md and .ci/run, Python versions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import mmgrpo

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
TESTS = (ROOT / "tests" / "README.md").read_text()
CHECKS = (ROOT / ".ci" / "run").read_text()
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())

PATHS = sorted(
    {path for path in re.findall(r"`([\w./<>-]+)`", GUIDE) if "/" in path or path.endswith((".md", ".toml"))}
)


def bash_blocks(text: str) -> list[str]:
    """The bash code blocks of a page."""
    return [block.strip() for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)]


def patterns_of_paths(*, placeholders: bool) -> list[str]:
    """Glob patterns of the paths in CONTRIBUTING.md, with or without placeholders such as ``<kind>``."""
    paths = [path for path in PATHS if ("<" in path) == placeholders]
    return [re.sub(r"<\w+>", "*", path) for path in paths]


def test_paths_of_the_guide_exist() -> None:
    patterns = patterns_of_paths(placeholders=False)
    assert {"mmgrpo/maths/", "policies/", "tests/test_architecture.py", "pyproject.toml"} <= set(patterns)
    assert [path for path in patterns if not (ROOT / path).exists()] == []


def test_paths_with_placeholders_have_a_file_or_folder() -> None:
    patterns = patterns_of_paths(placeholders=True)
    assert {"configs/methods/*/*.yaml", "mmgrpo/methods/*/*.py", "tests/methods/*/test_*.py"} <= set(patterns)
    assert [pattern for pattern in patterns if not any(ROOT.glob(pattern))] == []


def test_names_in_the_guide_are_defined_in_the_files_it_names() -> None:
    registry = (ROOT / "mmgrpo/config/registry.py").read_text()
    for name in ("REWARDS", "POLICIES", "SETTINGS"):
        assert f"`{name}`" in GUIDE
        assert re.search(rf"^{name}\b", registry, re.MULTILINE)


def test_guide_has_the_commands_of_the_readme_and_of_ci() -> None:
    commands = bash_blocks(GUIDE)
    assert [command for command in bash_blocks(README) if command.startswith("pip install uv")] == commands[:2]
    (lint,) = (block for block in commands if "ruff" in block)
    checks = [line for line in lint.splitlines() if "pytest" not in line]
    assert len(checks) == 5
    assert [check for check in checks if check not in CHECKS] == []


def test_workflow_runs_the_commands_of_the_readme_and_of_ci() -> None:
    train, tests = (command for command in bash_blocks(README) if command.startswith("pip install uv"))
    site = "uv run --group docs mkdocs build --strict"
    (environments,) = (line for line in bash_blocks(TESTS)[0].splitlines() if "--isolated" in line)
    commands = {step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step}
    assert commands == {
        ".ci/run",
        ".ci/distribution",
        tests,
        tests.replace("uv run", "uv run --resolution lowest-direct"),
        f"{train} steps=1",
        "git config --global core.symlinks false",
        f"pip install uv && {site}",
        'pip install uv && uv run pytest -m "" tests/test_notebooks.py',
        f"pip install uv && {environments}",
    }
    assert any(site in block for block in bash_blocks(GUIDE))


def test_nightly_jobs_run_every_test_once() -> None:
    (job,) = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"].values()
    *folders, rest = job["strategy"]["matrix"]["tests"]
    assert rest.split(" --ignore ") == ["tests", *" ".join(folders).split()]
    assert job["steps"][-1]["run"].endswith("pytest -m nightly ${{ matrix.tests }}")


def test_release_uploads_the_tested_distributions_by_trusted_publishing() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    build, publish = (jobs["build"]["steps"], jobs["publish"])
    assert ".ci/distribution" in [step.get("run") for step in build]
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}
    upload, download = build[-1], publish["steps"][0]
    assert upload["with"]["path"] == download["with"]["path"] == "dist"
    assert publish["steps"][-1] == {"uses": "pypa/gh-action-pypi-publish@release/v1"}


def test_workflow_covers_every_python_of_the_project() -> None:
    prefix = "Programming Language :: Python :: "
    classifiers = {item.removeprefix(prefix) for item in PROJECT["project"]["classifiers"] if item.startswith(prefix)}
    jobs = WORKFLOW["jobs"]
    oldest, newest = (set(jobs[name]["strategy"]["matrix"]["python"]) for name in ("oldest", "newest"))
    (python,) = (step["with"]["python-version"] for step in jobs["checks"]["steps"] if "with" in step)
    assert oldest == newest | {python} == classifiers - {"3"}
    assert PROJECT["project"]["requires-python"] == f">={min(oldest)}"


def test_pre_commit_runs_the_checks_of_ci() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = {hook["id"]: hook for repository in config["repos"] for hook in repository["hooks"]}
    assert set(hooks) == {"ruff-check", "ruff-format", "pydoclint"}
    (folders,) = re.findall(r"^ *uv run pydoclint --quiet (.*)$", CHECKS, re.MULTILINE)
    assert hooks["pydoclint"]["files"] == f"^({folders.replace(' ', '|')})/"
    assert all(re.fullmatch(r"v?\d+\.\d+\.\d+", repository["rev"]) for repository in config["repos"])


def test_citation_and_changelog_are_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    urls = PROJECT["project"]["urls"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "mmgrpo/__init__.py"  # the version has one place
    assert "version" not in {*citation, *PROJECT["project"]}
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["repository-code"] == urls["Repository"]
    assert re.search(
        rf"^## \[(Unreleased|{re.escape(mmgrpo.__version__)})\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    files = [url.partition("/main/")[2] for url in urls.values() if "/main/" in url]
    assert [path for path in files if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", ["bug.yml", "method.yml"])
def test_issue_forms_have_labels_and_unique_ids(page: str) -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE" / page).read_text())
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


NEW_METHOD = {
    "configs/methods/advantages/cubed.yaml": """
about:
  method:
    name: cubed
    title: Cubed
    paper_title: Cubed Advantages for Sparse Rewards
    use_when: Use it when rewards are sparse and the few best samples should count more.
    against: Cubes the advantages.
    use_for: [sparse-reward]
    holds: part, without the clip
    provenance: paper
    paper: "2612.00001"
    applies_to: both
    sources:
      advantage.scale: Cubed, eq. 1
      advantage.estimators: Cubed, eq. 2
      objective.surrogate: Cubed, eq. 3
      objective.aggregate: Cubed, eq. 3
      objective.kl.beta: Cubed, sec. 3, none
    deviations: ["The paper clips the cube at 8; this file does not."]
    evidence: ["By hand; tests/methods/advantages/test_cubed.py."]
advantage:
  scale: group
  estimators: [{name: cubed}]
objective:
  surrogate: {name: clipped, low: 0.2, high: 0.2}
  aggregate: {name: sequence_mean}
  kl: {beta: 0.0}
""",
    "mmgrpo/methods/advantages/cubed.py": '''
"""Cubed, arXiv:2612.00001."""

from mmgrpo.maths.estimators import ESTIMATORS, estimator


@ESTIMATORS.register
@estimator()
def cubed(feedback, advantage_BT):
    """The cube of the advantage.

    A <- A^3

    Source: Cubed, eq. 2.
    """
    return advantage_BT**3
''',
    "tests/methods/advantages/test_cubed.py": """
import torch

from mmgrpo.methods.advantages.cubed import cubed


def test_advantages_are_cubed() -> None:
    assert cubed().assign(None, torch.tensor([[-2.0], [0.5]])).tolist() == [[-8.0], [0.125]]
""",
}
"""The three files of CONTRIBUTING.md."""

SHOW_METHOD = """
import json, runpy, sys
from pathlib import Path
from typer.testing import CliRunner
from mmgrpo.check_data import RULES, DataFiles, apply_rules
from mmgrpo.cli import app
from mmgrpo.config.loading import find_config
from mmgrpo.docgen.methods import method_index, method_pages
from mmgrpo.docgen.papers import paper_index, papers_page

runpy.run_path("tests/methods/advantages/test_cubed.py")["test_advantages_are_cubed"]()
file, methods = find_config("methods/cubed"), method_index()
report = apply_rules(list(RULES.values()), DataFiles({"methods/cubed": file}, rewards={}))
pages, papers = method_pages(methods), papers_page(paper_index(methods))
values = {
    "file": str(file),
    "command": CliRunner().invoke(app, ["methods", "cubed"], env={"COLUMNS": "200"}).output,
    "search": CliRunner().invoke(app, ["methods", "sparse", "best", "samples"], env={"COLUMNS": "200"}).output,
    "page": pages["advantages.md"],
    "index": pages["index.md"],
    "papers": papers,
    "faults": [str(fault) for fault in report.faults],
}
Path(sys.argv[1]).write_text(json.dumps(values))
"""


@pytest.mark.nightly
def test_new_method_is_three_files(tmp_path: Path) -> None:
    """In a copy of the package, a method with three files is listed, checked, on its page and among the papers."""
    for folder in ("mmgrpo", "configs", "policies", "rewards", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in NEW_METHOD.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.lstrip())
    command = [sys.executable, "-c", SHOW_METHOD, str(tmp_path / "shown.json")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    output = json.loads((tmp_path / "shown.json").read_text())
    assert output["file"] == str(tmp_path / "configs/methods/advantages/cubed.yaml")
    assert "A <- A^3" in output["command"]
    assert re.search(r"advantage\.estimators +\[cubed\] +Cubed, eq\. 2", output["command"])
    assert re.search(r"^ *cubed +Cubes the advantages", output["search"], re.MULTILINE)
    assert "\n## Cubed {#cubed}\n" in output["page"]
    assert "- [cubed][]: Cubes the advantages\n" in output["index"].partition("## sparse-reward")[2]
    title = "[Cubed Advantages for Sparse Rewards](https://arxiv.org/abs/2612.00001)"
    row = f"| `cubed` | {title} | [methods/cubed](methods/advantages.md#cubed); part, without the clip; deviations: 1 |"
    assert row in output["papers"].splitlines()
    assert output["faults"] == []
