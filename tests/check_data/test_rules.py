"""Every rule of ``mmgrpo.check_data`` finds a fault in a file that breaks it, and none in the file before that."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from mmgrpo.check_data import RULES, DataFiles, apply_rules
from mmgrpo.check_data.__main__ import main
from mmgrpo.config.loading import find_config
from mmgrpo.system.folders import PACKAGE

METHOD, RECIPE, PAPER = "methods/gfpo", "recipes/sd3.5-flow-grpo-ocr", "papers/visual-rft"
RUN, TASK, REWARD = "quickstart/arithmetic-text", "tasks/ocr", "python:tests.check_data.documented_rewards:"

OCR = "https://raw.githubusercontent.com/yifan123/flow_grpo/ac4c86e8cae021841f1fde853d340e0db67690dd/dataset/ocr/train.txt"
"""The prompts of TASK."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A change of a shipped file that breaks a rule, and the fault: its key, and a part of its message."""

    rule: str
    name: str
    old: str
    new: str
    key: str
    message: str


BROKEN = (
    Broken("loads", METHOD, "count: 8, by: length", "count: 8, by: length, size: 2", "", "takes no 'size'"),
    Broken("loads", RUN, "seed: 0", "sed: 0", "", "did you mean seed"),
    Broken("loads", TASK, "watchdog: {window: 4}", "watchdog: {windows: 4}", "", "did you mean window"),
    Broken("numbers", "models/flux.1-dev", r"3\.0e-4", "3e-4", r".*\blr", "'3e-4' is a text in YAML 1.1"),
    Broken("evidence-files", "methods/arm", "test_group_rarity.py", "test_rare.py", "about.method.evidence",
           "test_rare.py"),
    Broken("description", METHOD, r"    holds: .*\n", "", "about.method.holds", "is missing"),
    Broken("description", PAPER, r"  use_for: .*\n", "", "about.use_for", "is missing"),
    Broken("description", METHOD, r"\A",
           "# Generates more members and trains the shortest, or those of most reward\n# per token.\n",
           "about.method.against", "repeats a comment"),
    Broken("loads", METHOD, r"use_for: \[length\]", "use_for: [lengths]", "", "'video'; got 'lengths'"),
    Broken("round-trip", RUN, "temperature: 1.0", "temperature: 1.0\n  template: {x: .nan}", "",
           "loads to another one"),
    Broken("explained", RUN, "{name: exact_match}", "{name: exact_match, colum: x}", "", "did you mean column"),
    Broken("method-sources", METHOD, r"      advantage\.scale: .*\n", "", "advantage.scale", "has no source"),
    Broken("method-sources", METHOD, r"      advantage\.scale:", "      advantage.eps: 1\n      advantage.scale:",
           "about.method.sources.advantage.eps", "does not set"),
    Broken("method-sources", METHOD, r"\nadvantage:", "\nrewards: [{name: exact_match}]\nadvantage:", "rewards",
           "state them in about.method.rewards"),
    Broken("method-name", METHOD, "name: gfpo", "name: gfpo-2", "about.method.name",
           "is 'gfpo-2'; the file is methods/gfpo"),
    Broken("method-kind", METHOD, "kind: selection", "kind: choice", "about.method.kind",
           "is 'choice'; put the file in"),
    Broken("method-kind", METHOD, "applies_to: tokens", "applies_to: denoising",
           "about.method.applies_to", "'denoising'"),
    Broken("method-in-runs", METHOD, "applies_to: tokens", "applies_to: [tokens]", "", "TypeError: unhashable type"),
    Broken("method-scale", METHOD, r"\nadvantage:", "\nsteps: 5\nadvantage:", "steps",
           "move it to about.method.paper_hparams"),
    Broken("method-scale", "methods/expo", r"\n  group_size: 9", "", "rollout.group_size",
           "the method does not set it"),
    Broken("method-objective", METHOD, "name: clipped, low", "name: cliped, low", "", "did you mean clipped"),
    Broken("method-objective", METHOD, r"\nobjective:\n(  .*\n)+", "\n", "", "has no key 'objective'"),
    Broken("loads", METHOD, "about:", "about: [", "", "is not valid YAML"),
    Broken("method-with-models", "methods/mix-grpo", r"  window: .*\n", "", "rollout.window", "is not set"),
    Broken("method-with-models", METHOD, "by: length", "by: lenght", "", "lenght"),
    Broken("method-in-runs", METHOD, r"\nadvantage:", "\nsteps: '5'\nadvantage:", "steps", "the method states '5'"),
    Broken("method-rewards", "methods/arm", "of: verifiers",
           "of: verifiers\n          gate: {reward: other, at_least: 1}", "", "other"),
    Broken("paper-hparams", METHOD, "paper_hparams:", "paper_hparams:\n      update: {epoch: 2}", "", "update.epoch"),
    Broken("recipe-values", RECIPE, "steps: 600", "steps: 600\nadvantage: {clamp: 2.0}", "advantage.clamp",
           "differs from methods/flow-grpo and has no source"),
    Broken("recipe-values", RECIPE, ", tasks/ocr", "", "include", "0 tasks"),
    Broken("held-out-rewards", RECIPE, "steps: 600", "evaluation: {watchdog: {held_out: [ocr_accuracy]}}", "",
           "ocr_accuracy"),
    Broken("held-out-rewards", RECIPE, "steps: 600", f"evaluation: {{prompts: {{source: {OCR}}}}}",
           "evaluation.prompts", "has the source and the split of the training prompts"),
    Broken("held-out-rewards", RECIPE, "steps: 600", "evaluation: {watchdog: null}",
           "evaluation.watchdog.held_out", "name a reward"),
    Broken("held-out-rewards", RECIPE, "steps: 600", "rewards: [{name: brightness}]", "rewards", "brightness"),
    Broken("task-sections", TASK, r"    evaluation\.watchdog: own\n", "", "evaluation.watchdog", "has no source"),
    Broken("task-sections", TASK, rf"\nprompts: \{{source: {OCR}\}}", "\nseed: 1", "", "has the sections evaluation, "),
    Broken("paper-sources", PAPER, r"    policy\.system: .*\n", "", "policy.system", "has no source"),
    Broken("paper-sources", PAPER, "  sources:", "  sources:\n    advantage.critic.eps: own",
           "about.sources.advantage.critic.eps",
           "not set"),
    Broken("paper-sources", PAPER, 'paper: "2503.01785"', "", "about.paper", "state the arXiv number"),
    Broken("paper-sources", PAPER, r"  deviations:\n(    .*\n)+", "  deviations: []\n", "about.deviations", "empty"),
    Broken("paper-sources", PAPER, r"Rows:", "Columns:", "about.note", "describes no rows"),
    Broken("paper-name", PAPER, "about:\n", "about:\n  name: visual\n", "about.name", "is that of the file"),
)  # fmt: skip


def faults(rule: str, data: DataFiles) -> list[tuple[str, str, str]]:
    """File, key and message of every fault."""
    return [(fault.file, fault.key, fault.message) for fault in apply_rules([RULES[rule]], data).faults]


def copied(name: str, folder: Path, old: str = "", new: str = "") -> DataFiles:
    """A shipped configuration in another folder, with the kind of a method in its file, and with a replaced text."""
    source = find_config(name)
    text = source.read_text()
    if name.startswith("methods/"):
        text = text.replace("\n  method:\n", f"\n  method:\n    kind: {source.parent.name}\n")
    changed = re.sub(old, new, text, count=1) if old else text
    assert (changed != text) == bool(old)
    path = folder / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(changed)
    return DataFiles({name: path})


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: f"{broken.rule}-{broken.key or broken.message}")
def test_broken_file_has_a_fault(broken: Broken, tmp_path: Path) -> None:
    assert faults(broken.rule, copied(broken.name, tmp_path)) == []
    broken_faults = faults(broken.rule, copied(broken.name, tmp_path, broken.old, broken.new))
    assert {file for file, _, _ in broken_faults} == {str(tmp_path / f"{broken.name}.yaml")}
    assert [text for _, key, text in broken_faults if re.fullmatch(broken.key, key) and broken.message in text], (
        broken_faults
    )


LEDGER_ROW = {"id": "dppo", "title": "A", "tier": "core", "group": "none", "studied_on": "text", "adds": "a term"}
LEDGER_FAULTS = {
    "ledger-unique": ({"id": "other"}, "id", "'other' is that of 2 rows"),
    "ledger-state": ({"setting": "kl_beta 0"}, "setting", "state setting or adds, one of them"),
    "ledger-setting": ({"adds": None, "setting": "objective.kl_betta: 0"}, "setting", "no key objective.kl_betta"),
}
OTHER_LEDGER_FAULTS = [
    ("ledger-state", {"leaves_out": "a term"}, "leaves_out", "is of a setting, and dppo has none"),
    ("ledger-state", {"group": "critic"}, "group", "'critic' is not among needs"),
    ("ledger-setting", {"adds": None, "setting": "name: exact_mach"}, "setting", "is called exact_mach"),
    ("ledger-setting", {"adds": None, "setting": "as methods/none"}, "setting", "no configuration methods/none"),
    ("ledger-setting", {"adds": None, "setting": "policy.lorra: 1"}, "setting", "no key policy.lorra"),
]


def ledger_of(folder: Path, *rows: Mapping[str, object]) -> DataFiles:
    """A ledger of a row and some changed rows."""
    path = folder / "papers.jsonl"
    first = LEDGER_ROW | {"id": "other", "title": "B"}
    path.write_text("\n".join(json.dumps(row) for row in (first, *(LEDGER_ROW | row for row in rows))))  # pyrefly: ignore[unsupported-operation]
    return DataFiles({}, ledger_path=path)


@pytest.mark.parametrize(
    ("rule", "values", "key", "message"),
    [*((rule, *rest) for rule, rest in LEDGER_FAULTS.items()), *OTHER_LEDGER_FAULTS],
)
def test_broken_row_of_the_ledger_has_a_fault(
    rule: str, values: Mapping[str, object], key: str, message: str, tmp_path: Path
) -> None:
    assert faults(rule, ledger_of(tmp_path, {})) == []
    file, fault_key, text = faults(rule, ledger_of(tmp_path, values))[-1]
    assert (file, fault_key) == ("papers.jsonl, line 2", key)
    assert message in text


def test_line_that_is_no_row_is_a_fault_of_every_rule_of_the_ledger(tmp_path: Path) -> None:
    data = ledger_of(tmp_path, {"tier": "other"})
    assert "line 2: tier" in faults("ledger-state", data)[0][2]


def test_group_of_a_key_that_does_not_exist_has_a_fault() -> None:
    data = DataFiles(
        {}, groups={"a": ("A", "objective.surogate"), "b": ("B", "objective.surrogate, objective.auxiliary")}
    )
    assert faults("ledger-group", data) == [("a", "objective.surogate", "is no key of a run")]


@pytest.mark.parametrize(
    ("rule", "reward", "messages"),
    [
        ("reward-docstring", "Undescribed", ["starts with neither", "'Range:'", "'Source:'", "'Traps:'"]),
        ("reward-docstring", "UnclosedLiteral", ["odd number of double backticks"]),
        ("reward-example", "WrongExample", ["unexpected keyword argument 'scal'"]),
        ("reward-settings", "Untyped", ["has no type"]),
    ],
)
def test_broken_docstring_of_a_reward_has_a_fault(rule: str, reward: str, messages: list[str]) -> None:
    for name in ("Documented", reward):
        data = DataFiles({}, rewards={f"{REWARD}{name}": f"{REWARD.removeprefix('python:')}{name}"})
        texts = [text for _, _, text in faults(rule, data)]
        expected = [] if name == "Documented" else messages
        assert len(texts) == len(expected)
        assert all(message in text for message, text in zip(expected, texts, strict=True)), texts


def test_two_files_of_one_name_have_a_fault(tmp_path: Path) -> None:
    for file in ("credit/new", "selection/new", "selection/other"):
        path = tmp_path / "methods" / f"{file}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    ((file, _, message),) = faults(
        "unique-name", DataFiles({"methods/new": path.with_name("new.yaml"), "methods/other": path})
    )
    assert file == str(path.with_name("new.yaml"))
    assert message == f"is the name of {tmp_path}/methods/credit/new.yaml and {tmp_path}/methods/selection/new.yaml"


def test_every_rule_has_a_broken_file() -> None:
    others = ("unique-name", "ledger-group", "reward-docstring", "reward-example", "reward-settings")
    assert {broken.rule for broken in BROKEN} | {*LEDGER_FAULTS, *others} == set(RULES)


@pytest.mark.nightly  # `.ci/run` runs the command at every commit
def test_command_finds_no_fault_in_the_shipped_data(capsys: pytest.CaptureFixture[str]) -> None:
    data = DataFiles()
    assert main([], data=data) == 0, capsys.readouterr().out
    assert re.fullmatch(rf"0 faults; {len(RULES)} rules, \d{{4}} checks\n", capsys.readouterr().out)
    assert [name for name, rule in RULES.items() if not list(rule.items(data))] == []


def test_command_prints_each_fault_with_its_file_key_and_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = copied(METHOD, tmp_path, "name: gfpo", "name: gfpo-2")
    assert main(["--rule", "method-name", "--rule", "method-kind"], data=data) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/methods/gfpo.yaml: about.method.name: is 'gfpo-2'; the file is methods/gfpo [method-name]",
        "1 faults; 2 rules, 2 checks",
    ]


def test_installed_package_without_tests_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mmgrpo.check_data.__main__.TOP", PACKAGE)
    assert main([]) == 2
    assert "clone the repository" in capsys.readouterr().err
