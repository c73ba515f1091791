"""Configurations of strangers: whatever a YAML file holds, the answer is a configuration or an error of one line."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config.loading import load_config
from mmgrpo.config.validating import MAX_NAMED
from mmgrpo.system.yamls import MAX_DEPTH, MAX_VALUES, YamlError, parse_yaml

LAUGHS = "\n".join([f"a0: &a0 [{'x, ' * 9}x]", *(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}*a{i - 1}]" for i in range(1, 10))])
MERGED = "\n".join([
    "a0: &a0 {k: 1}",
    *(f"a{i}: &a{i} {{<<: [{f'*a{i - 1}, ' * 9}*a{i - 1}], k{i}: 1}}" for i in range(1, 10)),
])  # fmt: skip

CASES = {
    "laughs": (LAUGHS.encode(), f"expands to more than {MAX_VALUES} values"),
    "merged laughs": (MERGED.encode(), f"expands to more than {MAX_VALUES} values"),
    "deep flow": (b"[" * 200, f"nested more than {MAX_DEPTH} deep"),
    "deepest flow": (b"[" * 10_000, f"nested more than {MAX_DEPTH} deep"),  # libyaml stops before that
    "deep block": (b"- " * 10_000, f"nested more than {MAX_DEPTH} deep"),
    "deep keys": (b"? " * 10_000, f"nested more than {MAX_DEPTH} deep"),
    "within itself": (b"a: &a [*a]", "an anchor contains itself"),
    "wide": (b"a: [" + b"1," * MAX_VALUES + b"]", f"expands to more than {MAX_VALUES} values"),
    "long": (b"note: " + b"x" * 2**19, "more than 262144 characters"),
    "large number": (b"steps: 1" + b"0" * 400, "an integer of more than 64 bits"),
    "endless number": (b"steps: " + b"9" * 5000, "Exceeds the limit"),
    "no date": (b"name: 2001-99-99", "month must be in 1..12"),
    "no timestamp": (b"name: !!timestamp x", "is not valid YAML"),
    "an object": (b"name: !!python/object/apply:os.system [id]", "could not determine a constructor"),
    "a list as key": (b"[a]: 1", "found unhashable key"),
    "bytes": (bytes(range(128, 256)), "can't decode byte"),
    "control characters": (b"name: \x00\x1b", "characters are not allowed"),
    "binary": (b"name: !!binary 'abc'", "is not valid YAML"),
    "a number": (b"7", "must hold a mapping of keys, got int"),
    "include of a mapping": (b"include: {a: 1}", "include must be the name of a file or a list of names"),
    "include of a number": (b"include: [7]", "include must be the name of a file or a list of names"),
    "include of a long name": (b"include: " + b"a" * 5000, "no configuration"),
    "keys that are no names": (b"7: 1\nnull: 2", "Keys should be strings"),
    "many wrong keys": (b"".join(b"k%d: 1\n" % i for i in range(5000)), "and 4992 more"),
    "a long wrong key": (b"k" * 1000 + b": 1", "unknown key"),
}

BY_NIGHT = {"wide": pytest.mark.nightly}  # a second of parsing, ten with every allocation traced


@pytest.mark.first_case
@pytest.mark.parametrize("case", [pytest.param(case, marks=BY_NIGHT.get(case, ())) for case in CASES])
def test_a_foreign_file_raises_with_a_line_per_key(case: str, tmp_path: Path) -> None:
    text, message = CASES[case]
    (tmp_path / "x.yaml").write_bytes(text)
    tracemalloc.start()
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "x.yaml")])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.exit_code == 2, result.exception
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == (MAX_NAMED if case == "many wrong keys" else 1)
    assert len(result.stderr) < 5000
    assert peak < 200 * 2**20


def test_files_that_include_each_other_in_millions_are_read_once(tmp_path: Path) -> None:
    for number in range(9):
        includes = f"include: [{f'{number + 1}.yaml, ' * 50}]"
        (tmp_path / f"{number}.yaml").write_text(f"{includes}\nabout: {{name: n{number}}}\n")
    (tmp_path / "9.yaml").write_text("seed: 3\n")
    config = load_config(tmp_path / "0.yaml")
    assert (config.about.name, config.seed) == ("n0", 3)


def test_a_long_chain_of_files_raises(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.yaml").write_text(f"include: {number + 1}.yaml\n")
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "0.yaml")])
    assert result.exit_code == 2
    assert "includes files more than 20 deep" in result.stderr


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "a" * 5000, "folder", "a\x00b"])
def test_folders_and_devices_are_no_configuration(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    result = CliRunner().invoke(app, ["explain", name if name.startswith("/") else str(tmp_path / name)])
    assert result.exit_code == 2, result.exception
    assert "error: no configuration" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("override", ["name=[", "name=*a", "seed=1" + "0" * 400, "name=" + "[" * 1000])
def test_overrides_are_read_within_the_same_bounds(override: str) -> None:
    result = CliRunner().invoke(app, ["explain", "quickstart/digits-image", override])
    assert result.exit_code == 2, result.exception
    assert f"the value of the override {override[:80]!r} is not valid YAML" in result.stderr


def test_few_anchors_are_parsed() -> None:
    text = "a: &a {x: 1e-5, y: [1, 2]}\nb: [*a, *a]\nc: {<<: *a, z: .inf}\nd: 0x10\n"
    a = {"x": 1e-5, "y": [1, 2]}
    assert parse_yaml(text) == {"a": a, "b": [a, a], "c": {**a, "z": float("inf")}, "d": 16}
    assert parse_yaml("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))
    with pytest.raises(YamlError, match="deep"):
        parse_yaml("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.window={name: slide, size: 2}", "rollout.window: unknown name 'slide'"),
        ("rollout.window={name: fixed, start: a, size: 2}", "rollout.window: start of fixed must be int, got 'a'"),
        ("objective.surrogate={name: clipped, low: [1], high: 1}", "low of clipped must be float, got [1]"),
        ("objective.surrogate={name: clipped, low: true, high: 1}", "low of clipped must be float, got True"),
        (
            "objective.surrogate={name: nft, weight: right_rate}",
            "weight of nft must be one of none, wrong_rate, odds_root, got 'right_rate'",
        ),
        (
            "objective.surrogate={name: nft, weight: 1}",
            "weight of nft must be one of none, wrong_rate, odds_root, got 1",
        ),
        ("rollout.window={name: random, size: 2, high: 1.5}", "high of random must be int or null, got 1.5"),
        (
            "rollout.strategy={name: two_stage_scouts, scouts: 3, best: 1, worst: 1, settings: 2}",
            "settings of two_stage_scouts must be a mapping",
        ),
        ("rollout.strategy={name: with_answer, column: 3}", "column of with_answer must be str, got 3"),
        (
            "rollout.strategy={name: on_failure, prompt_template: x, replace_failed: 1}",
            "replace_failed of on_failure must be bool",
        ),
        ("rollout.tree={name: at, at: [1, x]}", "at of at must be a list of int, got"),
    ],
)
def test_functions_and_their_numbers_are_checked_before_they_are_explained(override: str, message: str) -> None:
    result = CliRunner().invoke(app, ["explain", "quickstart/digits-image", override])
    assert result.exit_code == 2, result.exception
    assert message in result.stderr


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=-1", "seed: must be greater than or equal to 0; got -1"),
        ("seed=4294967296", "seed: must be less than 4294967296"),
        ("policy.strength=.inf", "policy (denoising): strength: must be a finite number; got inf"),
        ("policy.call.guidance_scale=.nan", "call.guidance_scale must be a finite number, got nan"),
        ("update.optimizer.lr=.inf", "update.optimizer.lr: must be a finite number; got inf"),
        ("advantage.scale={name: group, eps: .nan}", "advantage.scale: eps is not a number: got .nan"),
    ],
)
def test_numbers_that_no_run_can_have_raise_before_it(override: str, message: str) -> None:
    result = CliRunner().invoke(app, ["train", "quickstart/shapes-image", override])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
