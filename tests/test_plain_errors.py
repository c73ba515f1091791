"""Wrong input gets a message in plain words with the value, the allowed values and the fix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from mmgrpo.algorithm import objective_of
from mmgrpo.cli import app
from mmgrpo.cli.export import _write_full_model
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config, validated
from mmgrpo.distributed.trackers import wandb_settings
from mmgrpo.errors import ConfigError
from mmgrpo.explain.explanation import explanation
from mmgrpo.maths.filters import sample_filter
from mmgrpo.maths.surrogates import Surrogate
from mmgrpo.system import files
from mmgrpo.system.console import EncodableStream, PlainConsole
from mmgrpo.system.files import full_disk
from mmgrpo.training.arguments import with_policy_name
from mmgrpo.training.build import build_policy
from mmgrpo.trials.run_trials import ComparisonRunner, failure_reason

DIGITS = "quickstart/digits-image"


def error_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


class UnbuildablePolicy:
    """A class with no from_config."""

    settings_type = RunConfig


def surrogate_without_bounds(ratio: Tensor, logprob: Tensor, advantage: Tensor, *, low: float = 0.2) -> Surrogate:
    """loss = -r A."""
    del logprob
    loss = -(ratio * advantage) + 0 * low
    return Surrogate(loss, torch.zeros_like(ratio, dtype=torch.bool), torch.zeros_like(ratio, dtype=torch.bool))


def undecorated(rounds: Any, setting: Any) -> Any:
    """A function of two arguments by position, which no decorator turned into a factory."""
    return setting.groups(len(rounds), setting.num_prompts)


@sample_filter()
def keeps_all(feedback: Any, advantage: Tensor, *, below: float = 1.0) -> Tensor:
    """A factory of filters."""
    return feedback.valid_B & (advantage[:, 0] < below)


def bare_loss(ratio: Tensor, logprob: Tensor, advantage: Tensor) -> Tensor:
    """A tensor where a record is due."""
    return -(ratio + 0 * logprob) * advantage


def bare_bound(log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """Another tensor."""
    return log_ratio.clamp(max=1) + 0 * advantage


def failing(ratio: Tensor, logprob: Tensor, advantage: Tensor) -> Tensor:
    """An error of its arithmetic."""
    return ratio[0].view(1, 2) * logprob * advantage


def test_a_mistyped_file_name_is_answered_by_the_files_near_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_geometry.yaml").write_text("steps: 1\n")
    (tmp_path / "runs" / "digits-3").mkdir(parents=True)
    (tmp_path / "runs" / "digits-3" / "config.yaml").write_text("steps: 1\n")
    monkeypatch.chdir(tmp_path)
    message = error_of("explain", "my_geomtry.yaml")
    assert message == (
        "error: no configuration 'my_geomtry.yaml': there is no such file, run folder or shipped name; did you mean "
        "my_geometry.yaml?"
    )
    assert error_of("sample", "runs/digits-2", "x").endswith("did you mean runs/digits-3?")
    assert "did you mean quickstart/digits-image or " in error_of("explain", "digits-imag")
    assert error_of("explain", "nothing_like_it") == (
        "error: no configuration 'nothing_like_it': there is no such file, run folder or shipped name; this folder has "
        "my_geometry.yaml; mmgrpo recipes and mmgrpo methods list the shipped ones"
    )


def test_a_single_reward_and_a_single_source_may_be_bare_names() -> None:
    config = load_config(DIGITS, ["rewards=brightness", "prompts=prompts.txt"])
    assert [reward.name for reward in config.rewards] == ["brightness"]
    assert config.prompts is not None
    assert config.prompts.source == "prompts.txt"
    assert [r.weight for r in load_config(DIGITS, ["rewards={name: brightness, weight: 2}"]).rewards] == [2.0]
    both = load_config(DIGITS, ["prompts=prompts.txt", "prompts.limit=3"]).prompts
    assert both is not None
    assert (both.source, both.limit) == ("prompts.txt", 3)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rewards=3", "rewards: must be a list, such as rewards=[{name: exact_match}]; got 3"),
        ("prompts=3", "prompts: must be a mapping, such as prompts={source: prompts.jsonl}; got 3"),
        ("steps=many", "steps: must be an integer; got 'many'"),
        ("update.optimizer.lr=fast", "update.optimizer.lr: must be a number; got 'fast'"),
        ("update.cycle_masks=perhaps", "update.cycle_masks: must be true or false; got 'perhaps'"),
        ("steps=-1", "steps: must be greater than or equal to 0; got -1"),
        ("evaluation.watchdog.stop=reward", "evaluation.watchdog.stop: must be a list, such as [a, b]; got 'reward'"),
    ],
)
def test_a_value_of_another_kind_is_explained_in_words_of_yaml(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(DIGITS, [override])
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rewards=[{name:box_iou}]", "rewards.0.name is missing; write a space after the colon: name: box_iou"),
        (
            "rollout={prompts_per_step:2}",
            "unknown key 'rollout.prompts_per_step:2'; write a space after the colon: prompts_per_step: 2",
        ),
        ("update={optimizer:{lr: 1}}", "; write a space after each colon: {key: value}"),
    ],
)
def test_a_colon_without_a_space_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(DIGITS, [override])
    assert str(raised.value).endswith(message)


def test_a_surrogate_without_a_bound_that_a_modulation_sets_is_an_error_before_the_run() -> None:
    values = {
        "surrogate": f"python:{__name__}:surrogate_without_bounds",
        "modulations": [{"name": "by_old_probability", "low": 0.2, "high": 0.2}],
    }
    objective = RunConfig.model_validate({"objective": values}).objective
    with pytest.raises(ConfigError, match="has no parameter high; use one that has both, such as clipped"):
        objective_of(objective)


BY_SETTINGS = "takes (rounds, setting) by position and is called with its settings only: "


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rollout.strategy", "undecorated", f"{BY_SETTINGS}put @strategy() above it (mmgrpo.maths.strategies)"),
        ("advantage.estimators", ["undecorated"], f"{BY_SETTINGS}put @estimator() above it (mmgrpo.maths.estimators)"),
        ("advantage.filters", ["undecorated"], f"{BY_SETTINGS}put @sample_filter() above it (mmgrpo.maths.filters)"),
        ("objective.terms", ["undecorated"], f"{BY_SETTINGS}put @term() above it (mmgrpo.maths.terms)"),
        (
            "objective.modulations",
            ["undecorated"],
            f"{BY_SETTINGS}put @modulation() above it (mmgrpo.maths.modulations)",
        ),
        ("objective.selections", ["undecorated"], f"{BY_SETTINGS}put @selection() above it (mmgrpo.maths.selections)"),
        (
            "rollout.prompt_templates",
            {"hint": "undecorated"},
            f"{BY_SETTINGS}put @prompt_template() above it (mmgrpo.data.history)",
        ),
        (
            "prompts.sampler",
            "undecorated",
            f"{BY_SETTINGS}name a function of settings, after a *, that returns the record of this key "
            "(https://mmgrpo.github.io/mmgrpo/how-to/extending/)",
        ),
        (
            "objective.surrogate",
            "undecorated",
            "takes (rounds, setting) by position and is called with (ratio_BT, logprob_BT, advantage_BT): name a "
            "function of these, with its settings after a *",
        ),
        (
            "objective.surrogate",
            "keeps_all",
            "takes nothing by position and is called with (ratio_BT, logprob_BT, advantage_BT): name a function of "
            "these, with its settings after a *",
        ),
        ("objective.surrogate", "bare_loss", "returns a Tensor; it must return a Surrogate (mmgrpo.maths.surrogates)"),
        ("objective.bound", "bare_bound", "returns a Tensor; it must return a Bounded (mmgrpo.maths.ratios)"),
        (
            "objective.surrogate",
            "failing",
            "raised RuntimeError on tensors of shape (2, 3): shape '[1, 2]' is invalid for input of size 3",
        ),
        (
            "schedules",
            {"advantage.clamp": "keeps_all"},
            "takes nothing by position and is called with (step): name a function of these, with its settings after "
            "a *",
        ),
        ("rollout.engine", "undecorated", f"{BY_SETTINGS}name a function of settings, after a *, that returns the"),
        (
            "update.hooks",
            ["undecorated"],
            "takes (rounds, setting) by position and is called with (parameters): name a function of these, with its "
            "settings after a *",
        ),
        (
            "advantage.scale",
            "bare_loss",
            "takes (ratio, logprob, advantage) by position and is called with (reward_PG, valid_PG): name a function "
            "of these, with its settings after a *",
        ),
    ],
)
def test_function_that_does_not_fit_its_key_is_named_with_the_fix(key: str, value: Any, message: str) -> None:
    names = value if isinstance(value, str) else next(iter(value.values() if isinstance(value, dict) else value))
    target = f"python:{__name__}:{names}"
    override = {str: target, list: [target], dict: {name: {"name": target} for name in value}}[type(value)]
    with pytest.raises(ConfigError) as raised:
        explanation(load_config(DIGITS, {key: override}))
    assert f": {target} {message}" in str(raised.value)


def test_function_without_a_signature_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"objective\.surrogate: python:builtins:max has no signature to read"):
        explanation(load_config(DIGITS, ["objective.surrogate=python:builtins:max"]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "advantage.estimators=[{name: discounted}]",
            "advantage.estimators: unknown name 'discounted'; did you mean scoped or prefix_count? (one in your "
            "module: python:MODULE:discounted)",
        ),
        (
            "rewards=[{name: colo}]",
            "unknown name 'colo' among rewards; did you mean color or overlong? (one in your module: ",
        ),
    ],
)
def test_unregistered_function_is_answered_with_its_form(override: str, message: str) -> None:
    assert message in error_of("explain", DIGITS, override)


def test_explain_and_train_reject_the_same_policy_class() -> None:
    config = validated({"policy": {"name": f"python:{__name__}:UnbuildablePolicy"}})
    messages = []
    for check in (lambda: explanation(config), lambda: build_policy(config, "cpu")):
        with pytest.raises(ConfigError, match="cannot be built from YAML: it has no from_config") as raised:
            check()
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_a_comparison_shows_the_reason_of_a_failure_once(tmp_path: Path) -> None:
    trials = [SimpleNamespace(name=name, log=tmp_path / f"{name}.log") for name in ("grpo-0", "grpo-1", "dapo-0")]
    for trial in trials[:2]:
        trial.log.write_bytes(b"loading ...\nerror: policy.model: there is no /models/\xb1x\nin all\n")
    trials[2].log.write_text("Traceback\n  File x\nValueError: no\n", encoding="utf-8")
    carrying = ComparisonRunner(num_jobs=1, print_line=lambda line: None)
    lines = [carrying._failure(trial) for trial in trials]  # pyrefly: ignore[bad-argument-type]
    assert lines == [
        f"failed: policy.model: there is no /models/\ufffdx (log: {trials[0].log})",
        f"failed as grpo-0 did; see {trials[1].log}",
        f"failed: ValueError: no (log: {trials[2].log})",
    ]
    assert failure_reason(tmp_path / "absent.log") == "its log cannot be read (No such file or directory)"


def test_a_policy_without_an_export_raises_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmgrpo.cli.export.policy_of", lambda settings, checkpoint: UnbuildablePolicy())
    with pytest.raises(
        ConfigError, match=r"has no method export\(directory, dtype=\.\.\.\).*its policy/ folder was written by"
    ):
        _write_full_model(RunConfig(), tmp_path, tmp_path, None)


def test_a_run_that_resumes_continues_its_run_at_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    monkeypatch.delenv("WANDB_DIR", raising=False)
    first, again = (wandb_settings(RunConfig.model_validate({"about": {"name": "mine"}}), tmp_path) for _ in range(2))
    assert first == again
    assert (first["name"], first["dir"], first["resume"]) == ("mine", str(tmp_path), "allow")
    assert first["id"] == (tmp_path / "wandb-id.txt").read_text()
    assert len(first["id"]) == 8
    other = tmp_path / "other"
    other.mkdir()
    assert wandb_settings(RunConfig(), other)["id"] != first["id"]


def test_a_policy_section_with_a_path_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    values = {"steps": 1, "policy": {"max_new_tokens": 5}}
    named = with_policy_name(values, tmp_path)
    assert named == {"steps": 1, "policy": {"max_new_tokens": 5, "name": "language"}}
    assert validated(named).policy is not None
    for other in (None, object()):
        assert with_policy_name(values, other) is values
    assert with_policy_name({"steps": 1}, tmp_path) == {"steps": 1}


def test_a_console_of_any_encoding_takes_any_text() -> None:
    code = "from mmgrpo.system.console import PlainConsole; PlainConsole().print_line('reward 0.5 ± 0.1'); print('日')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [rb"reward 0.5 \xb1 0.1", rb"\u65e5"]


def test_a_stream_that_is_not_pythons_own_takes_any_text() -> None:
    class Tee:
        encoding = "ascii"

        def __init__(self) -> None:
            self.text = ""

        def write(self, text: str) -> int:
            self.text += text.encode("ascii").decode()
            return len(text)

        def flush(self) -> None:
            """Nothing."""

    tee = Tee()
    console = PlainConsole()
    console.file = tee
    console.print_line("0.5 ± 0.1")
    assert tee.text == "0.5 \\xb1 0.1\n"
    assert EncodableStream(tee).encoding == "ascii"


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert full_disk(tmp_path / "a" / "b") == ""
    free: Any = SimpleNamespace(free=3 * 2**19)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: free)
    assert full_disk(tmp_path / "a" / "b") == (
        f" (the disk of {tmp_path} is full, 1.5 MiB free: make room, or set output=FOLDER on another)"
    )


@pytest.mark.parametrize(
    ("run", "level", "error"),
    [
        ("quickstart/digits-image", "step", None),
        ("quickstart/arithmetic-text", "token", None),
        ("quickstart/digits-image", "null", None),
        ("quickstart/digits-image", "token", "the policy denoising is for denoising policies: set step, or null"),
        ("quickstart/arithmetic-text", "step", "the policy language is for tokens: set token, or null"),
    ],
)
def test_ratio_level_of_a_decision_has_the_name_of_the_policy(run: str, level: str, error: str | None) -> None:
    override = [f"objective.ratio_level={level}"]
    if error is not None:
        with pytest.raises(ConfigError, match=error):
            load_config(run, override)
        return
    assert objective_of(load_config(run, override).objective).ratio_level == "token"  # of each decision


def test_file_of_another_library_gets_a_line_for_each_key(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(
        "job: extension\n"
        "config:\n"
        "  name: my_lora\n"
        "  process:\n"
        "    - network: {type: lora, linear: 16, linear_alpha: 16}\n"
        "      save: {dtype: float16, save_every: 250}\n"
        "      datasets: [{folder_path: x, caption_ext: txt}]\n"
        "      train: {batch_size: 1, steps: 2000, lr: 1e-4}\n"
    )
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "train.yaml")])
    lines = result.output.splitlines()
    assert lines[0] == "error: unknown key 'job'"
    assert "  ai-toolkit's network.linear is policy.lora.rank" in lines
    assert "  ai-toolkit's train.lr is update.optimizer.lr" in lines
    assert [line for line in lines[1:] if not line.startswith(("  ai-toolkit's ", "  unknown key 'config'"))] == []
