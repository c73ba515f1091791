"""The core install and the extras: every import is declared, and a missing package is an error with its fix."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config import RunConfig
from mmgrpo.config.registry import REWARDS
from mmgrpo.distributed.accelerator import make_accelerator
from mmgrpo.errors import MissingPackageError
from mmgrpo.system import extras
from mmgrpo.system.extras import EXTRA_OF, install_command, is_installed, missing, required
from tests.words import words_of

ROOT = Path(__file__).parents[1]
OUTSIDE = ROOT / "examples" / "own_policy"  # a separate project with its pyproject.toml
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

WITHOUT_EXTRAS = """
import json, sys
sys.modules |= dict.fromkeys(json.loads(sys.argv[1]))
import mmgrpo.cli, mmgrpo.doctor.examination, mmgrpo.report, mmgrpo.training.trainer, mmgrpo.policies.diffusion.policy
import mmgrpo.policies.language.policy, mmgrpo.examples.pipelines, mmgrpo.examples.language_models
from mmgrpo.training.build import build_rewards
from mmgrpo.config import RewardConfig
from mmgrpo.errors import MissingPackageError
from mmgrpo.config.registry import REWARDS, resolve
said = {}
for name in REWARDS:
    try:
        resolve("rewards", name)
        if name in ("edit_distance", "detection", "math_verify"):
            build_rewards([RewardConfig(name=name)])
    except MissingPackageError as error:
        said[name] = str(error)
print(json.dumps(said))
"""


def distribution(requirement: str) -> str:
    """The name in a requirement, as names of distributions are compared."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s>=<\[;!~]", requirement)[0]).lower()


CORE = {distribution(requirement) for requirement in PROJECT["project"]["dependencies"]}
EXTRAS = {
    extra: {distribution(requirement) for requirement in requirements}
    for extra, requirements in PROJECT["project"]["optional-dependencies"].items()
}


def third_party() -> Iterator[tuple[str, str]]:
    """(file, top-level name) of everything imported from others, in functions as well."""
    for room in ("mmgrpo", "policies", "rewards", "examples"):
        for path in sorted((ROOT / room).rglob("*.py")):
            if OUTSIDE in path.parents:
                continue
            packages = words_of(path).packages - {*sys.stdlib_module_names, "mmgrpo"}
            yield from ((str(path.relative_to(ROOT)), package) for package in packages)


@cache
def _installed() -> Mapping[str, list[str]]:
    return packages_distributions()  # seconds


def distributions(module: str) -> set[str]:
    return {distribution(name) for name in _installed().get(module, [module])}


@pytest.mark.nightly
def test_every_import_is_declared() -> None:
    undeclared = {
        f"{file} imports {module}"
        for file, module in third_party()
        if not distributions(module) & (EXTRAS[EXTRA_OF[module]] if module in EXTRA_OF else CORE)
    }
    assert not undeclared


def test_packages_of_extras_are_not_in_the_core() -> None:
    named = {name for module in EXTRA_OF for name in distributions(module)}
    assert not named & CORE
    assert {"torch", "diffusers", "transformers", "accelerate", "peft", "qwen-vl-utils", "open-clip-torch"} <= CORE


def named_extras() -> Iterator[tuple[str, str]]:
    """(file, extra) of every install command in code, configurations and docs: --extra NAME, mmgrpo[NAME], .[NAME]."""
    folders = ("mmgrpo", "policies", "rewards", "examples", "configs", "docs")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.*")) if OUTSIDE not in path.parents]
    for path in (ROOT / "README.md", *paths):
        text = path.read_text(encoding="utf-8") if path.suffix in (".py", ".md", ".yaml") else ""
        for single, several in re.findall(r"--extra ([a-z][\w-]*)|(?:mmgrpo|[\"' ]\.)\[([a-z][\w, -]*)\][\"']", text):
            names = [single] if single else re.split(r"\s*,\s*", several)
            yield from ((str(path.relative_to(ROOT)), name) for name in names)


def test_extras_that_errors_and_docs_name_are_defined() -> None:
    assert set(EXTRA_OF.values()) <= set(EXTRAS)
    named = set(named_extras())
    assert {name for _, name in named} >= {"rewards", "quantization"}
    assert {(file, name) for file, name in named if name not in EXTRAS} == set()


def test_readme_lists_the_extras() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (sentence,) = re.findall(r"The extras are (.*?); an error", readme, re.DOTALL)
    assert set(re.findall(r"`([a-z-]+)`", sentence)) == set(PROJECT["project"]["optional-dependencies"])


def test_the_readme_s_commands_install_the_needs_of_the_digits() -> None:
    """``uv run`` installs the group dev, and no extra."""
    developing = {distribution(requirement) for requirement in PROJECT["dependency-groups"]["dev"]}
    assert EXTRAS["rewards"] <= developing
    assert "default-groups" not in PROJECT.get("tool", {}).get("uv", {})


@pytest.mark.nightly
def test_without_extras_commands_start_and_rewards_name_their_extra() -> None:
    call = [sys.executable, "-c", WITHOUT_EXTRAS, json.dumps(sorted(EXTRA_OF))]
    done = subprocess.run(call, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    assert set(output) == {
        *("digit_verifier", "held_out_judge", "digit_recall", "digit_precision", "digit_spread"),
        *("edit_verifier", "held_out_edit_judge", "moving_digit_verifier", "moving_digit_judge"),
        "scene_verifier",
        *("color", "sharpness", "grid_artifacts", "image_similarity", "edit_consistency", "edit_direction"),
        *("motion", "temporal_consistency", "frame_mean"),
        *("detection", "edit_distance", "caption_score", "ocr_accuracy", "math_verify"),
    } & set(REWARDS)
    rewards, maths = (
        f"in {ROOT}, uv sync --inexact --extra {x}, or pip install -e '.[{x}]'" for x in ("rewards", "math")
    )
    assert output["detection"] == f"reward detection needs the package 'scipy': {rewards}"
    assert output["edit_distance"] == f"reward edit_distance needs the package 'rapidfuzz': {rewards}"
    assert output["math_verify"] == f"reward math_verify needs the package 'math_verify': {maths}"
    assert {re.search(r"--extra (\w+), or", line)[1] for line in output.values()} == {"rewards", "math"}  # pyrefly: ignore[unsupported-operation]


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_an_error(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)
    assert not is_installed(tracker)
    with pytest.raises(MissingPackageError) as raised:
        make_accelerator(RunConfig.model_validate({"runtime": {"trackers": [tracker]}}))
    assert str(raised.value) == (
        f"runtime.trackers: {tracker} needs the package '{tracker}': in {ROOT}, uv sync --inexact --extra trackers, "
        "or pip install -e '.[trackers]'"
    )


def test_outside_of_a_checkout_the_requirements_of_the_extra_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """mmgrpo is on no package index, so that ``pip install 'mmgrpo[math]'`` would find nothing."""
    monkeypatch.setattr(extras, "CHECKOUT", Path("/nowhere"))
    monkeypatch.setattr(
        extras,
        "requires",
        lambda name: ["torch>=2.5", "math-verify>=0.8; extra == 'math'", "fastapi>=0.115; extra == 'serve'"],
    )
    assert install_command("math_verify") == "pip install 'math-verify>=0.8' (the extra mmgrpo[math])"


@pytest.mark.parametrize("command", [["train"], ["train", "--accelerate", "gpus"]])
def test_a_missing_tracker_is_an_error_before_anything_is_loaded(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    name, *options = command
    result = CliRunner().invoke(app, [name, "quickstart/digits-image", "runtime.trackers=[wandb]", *options])
    assert result.exit_code == 2
    assert "runtime.trackers: wandb needs the package 'wandb'" in " ".join(result.output.split())
    assert "loading" not in result.output


def test_the_docker_image_has_the_needs_of_its_example() -> None:
    dockerfile = (ROOT / "docs/deploy/Dockerfile").read_text()
    assert "mmgrpo train quickstart/digits-image" in dockerfile
    assert {"rewards", "math", "trackers"} <= set(re.findall(r"--extra (\w+)", dockerfile)) <= set(EXTRAS)


def test_a_package_of_no_extra_is_named_by_itself() -> None:
    cure = "pip install easyocr, or in a checkout of mmgrpo uv run --with easyocr mmgrpo ..."
    assert str(missing("easyocr", "engine easyocr")) == f"engine easyocr needs the package 'easyocr': {cure}"
    with pytest.raises(MissingPackageError, match="a test needs the package 'no_such_package'"):
        required("no_such_package.inner", "a test")
    assert required("json.decoder", "a test").JSONDecodeError is json.JSONDecodeError
