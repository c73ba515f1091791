"""The files for contributors agree with the project: paths, commands of README.md and .ci/run, Python versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
CHECKS = (ROOT / ".ci" / "run").read_text()
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())

PATHS = sorted(
    {path for path in re.findall(r"`([\w./<>-]+)`", GUIDE) if "/" in path or path.endswith((".md", ".toml"))}
    - {".types/mmgrpo"}  # made by .ci/run
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
    commands = {step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step}
    assert commands == {
        ".ci/run",
        tests,
        tests.replace("uv run", "uv run --resolution lowest-direct"),
        f"{train} steps=1",
        "git config --global core.symlinks false",
        f"pip install uv && {site}",
    }
    assert any(site in block for block in bash_blocks(GUIDE))


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
    (folders,) = re.findall(r"^uv run pydoclint --quiet (.*)$", CHECKS, re.MULTILINE)
    assert hooks["pydoclint"]["files"] == f"^({folders.replace(' ', '|')})/"
    assert all(re.fullmatch(r"v?\d+\.\d+\.\d+", repository["rev"]) for repository in config["repos"])


def test_citation_and_changelog_are_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version, urls = PROJECT["project"]["version"], PROJECT["project"]["urls"]
    assert citation["version"] == version
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["repository-code"] == urls["Repository"]
    assert re.search(rf"^## \[(Unreleased|{re.escape(version)})\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    files = [url.partition("/main/")[2] for url in urls.values() if "/main/" in url]
    assert [path for path in files if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", ["bug.yml", "method.yml"])
def test_issue_forms_have_labels_and_unique_ids(page: str) -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE" / page).read_text())
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
