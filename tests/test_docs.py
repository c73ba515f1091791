"""The examples of the documentation work: its policy satisfies the contract, its rewards score, its links resolve."""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import mmgrpo
from mmgrpo.cli import app
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import CONFIGS, shipped
from mmgrpo.config.registry import names, resolve
from mmgrpo.config.renamed import renamed_key
from mmgrpo.config.sections import unknown_keys
from mmgrpo.docgen.configuration import configuration_page
from mmgrpo.docgen.site import reference_pages
from mmgrpo.scoring import NamedReward, score
from mmgrpo.system.yamls import parse_yaml
from mmgrpo.testing import LAWS, Subject
from mmgrpo.types import Plan, Prompt, Sample
from tests.tiny.language_models import make as make_language_model
from tests.words import per_thousand

DOCS = CONFIGS.resolve().parent / "docs"
PROMPTS = [Prompt("one"), Prompt("two")]


def page_names(page: str) -> dict[str, Any]:
    """The names that a page's Python defines."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        exec(block, names)
    return names


@pytest.fixture
def make() -> Any:
    """LetterPolicy of the page."""
    return page_names("learn/smallest-policy.md")["LetterPolicy"]


def test_own_policy_keeps_the_contract(make: Any) -> None:
    def parameters_of(policy: Any) -> list[nn.Parameter]:
        return [policy.logits]

    subject = Subject(make=lambda batch: make(), parameters=parameters_of, prompts=PROMPTS)
    for law in LAWS:
        law(subject)


def test_own_policy_without_noise_repeats_itself(make: Any) -> None:
    rollout = make().rollout(PROMPTS, group_size=2, seed=0, plan=Plan(stochastic=()))
    assert {sample.text for sample in rollout.samples} == {"aaaa"}
    assert not rollout.mask_BT.any()


def test_own_policy_learns_to_write_a(make: Any, tmp_path: Path) -> None:
    policy, config = make(), {
        "output": str(tmp_path),
        "steps": 20,
        "rollout": {"prompts_per_step": 2, "group_size": 16},
        "objective": {"ratio_level": "sequence", "kl": {"divergence": "k3", "beta": 0.01}},
        "update": {"optimizer": {"lr": 0.3}},
    }  # fmt: skip
    mmgrpo.Trainer(policy, {"a": lambda samples: [s.text.count("a") / 4 for s in samples]}, PROMPTS, config).train()
    assert float(policy.logits.detach().softmax(1)[:, 0].mean()) > 0.3  # 1 / 26 at the start
    assert torch.equal(policy.frozen, torch.zeros(4, 26))


@pytest.mark.parametrize("factor", [1.0, 0.98])
def test_wrong_log_probabilities_are_printed_after_the_first_step(
    make: Any, factor: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0.98 times a log-probability of -ln 26 is 0.065 more; 0.02 of a clip bound of 0.2 is noise."""

    class Scaled(make):
        def evaluate(self, *arguments: Any, **settings: Any) -> Any:
            for part in super().evaluate(*arguments, **settings):
                yield replace(part, logprob_BT=factor * part.logprob_BT)

    config = {"output": str(tmp_path), "steps": 1, "rollout": {"prompts_per_step": 1, "group_size": 4}}
    config["objective"] = {"kl": {"beta": 0.0}}  # pyrefly: ignore[bad-assignment]
    mmgrpo.Trainer(Scaled(), {"a": lambda samples: [float(s.text[0] < "m") for s in samples]}, PROMPTS, config).train()
    output = capsys.readouterr()
    note = "differ by up to 0.065 from those of the rollout, where 0.02 is numerical noise"
    assert (note in " ".join((output.out + output.err).split())) == (factor != 1.0)


def test_rewards_of_the_page() -> None:
    names = page_names("how-to/own-reward.md") | page_names("how-to/rewards.md")
    stripes = Image.fromarray(np.array([[0, 255], [0, 255]], dtype=np.uint8))
    samples = [
        Sample(Prompt("x", columns={"answer": "7"}), 0, 0, text="a 7"),
        Sample(Prompt("x", columns={"answer": "7"}), 0, 1, text="eight"),
        Sample(Prompt("x"), 1, 0, text="7", image=stripes),
    ]
    scores = score(samples, [NamedReward(name, names[name]) for name in ("sharpness", "mentions", "rank")])
    assert scores.valid_BR.tolist() == [[False, True, True], [False, True, True], [True, False, True]]
    # grey levels 0 and 255 side by side differ by 255 along the rows and by 0 down the columns
    assert scores.value_BR.tolist() == [[0, 1, 0], [0, 0, 1], [255, 0, 1]]


def test_own_reward_in_ten_lines_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)  # of another test
    page = (DOCS / "how-to/own-reward.md").read_text()
    guide = page.partition("## A custom reward in ten lines")[2].partition("\n## ")[0]
    for name, body in re.findall(r"```\w+\n# ([\w.]+).*?\n(.*?)```", guide, re.DOTALL):
        (tmp_path / name).write_text(body)
    assert len((tmp_path / "my_rewards.py").read_text().splitlines()) <= 10
    (command,) = re.findall(r"^\$ mmgrpo (.*)$", guide, re.MULTILINE)
    small = ["steps=1", "update.warmup.steps=1", "rollout.group_size=2", "evaluation.samples_per_prompt=2"]
    result = CliRunner().invoke(app, [*command.split(), *small])
    assert result.exit_code == 0, result.output
    line = json.loads((tmp_path / "runs/sharp/metrics.jsonl").read_text().splitlines()[-1])
    assert line["reward/sharp/mean"] > 0
    assert line["reward/sharp/applies_frac"] == 1.0
    assert line["reward/mean"] == pytest.approx(line["reward/digit_verifier/mean"] + 0.01 * line["reward/sharp/mean"])


FOLDERS = ("docs", "examples", "benchmarks", "configs", "policies", "rewards", "tests")


def test_relative_links_lead_to_files_and_headings() -> None:
    root = DOCS.parent
    pages = [*root.glob("*.md"), *(page for folder in FOLDERS for page in (root / folder).rglob("*.md"))]
    assert {root / "README.md", root / "examples/own_policy/README.md", DOCS / "learn/own-policy.md"} <= set(pages)
    broken = [
        f"{page.relative_to(root)} links to {target}"
        for page in pages
        for target in re.findall(
            r"\]\(((?![a-z]+:)[^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        )
        if not leads_somewhere(page, target)
    ]
    assert broken == []


def leads_somewhere(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = Path(os.path.normpath(page.parent / name)) if name else page
    is_reference = path.is_relative_to(DOCS / "reference")
    reference = pages_of_reference().get(path.relative_to(DOCS).as_posix()) if is_reference else None
    if reference is None and (not path.exists() or not anchor or path.suffix != ".md"):
        return path.exists()
    headings = re.findall(r"^#+ (.*)$", reference or path.read_text(encoding="utf-8"), re.MULTILINE)
    return not anchor or anchor in {anchor_of(heading) for heading in headings}


def anchor_of(heading: str) -> str:
    """The anchor of a heading: ``{#name}`` at its end, or its words."""
    _, brace, name = heading.rstrip("}").partition(" {#")
    return name if brace else re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@cache
def pages_of_reference() -> dict[str, str]:
    """The pages of the site's reference, which are built and not committed, by path below docs/."""
    return reference_pages(app, mmgrpo.HOMES)


MEASURED = ("breadth-denoising.md", "breadth-language.md")
PAGES = [DOCS.parent / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page.name not in MEASURED)]
FORMER_WORDS = (
    "lies",
    "stands",
    "beside",
    "told",
    "drawn",
    "whoever",
    "nobody",
    "somebody",
    "knob",
    "learnt",
    "taught",
)


def test_pages_follow_the_glossary() -> None:
    text = {page: page.read_text(encoding="utf-8") for page in PAGES}
    prose = {page: re.sub(r"```.*?```|`[^`]*`", " ", text[page], flags=re.DOTALL).lower() for page in PAGES}
    assert [page.name for page in PAGES if per_thousand(page) > 2] == []
    assert [(page.name, w) for page in PAGES for w in FORMER_WORDS if re.search(rf"\b{w}\b", prose[page])] == []


def test_files_that_pages_name_exist() -> None:
    pattern = r"`((?:mmgrpo|policies|rewards|examples|configs|tests|benchmarks)/[\w/.-]+\.(?:py|yaml|md|toml))`"
    named = {file for page in PAGES for file in re.findall(pattern, page.read_text(encoding="utf-8"))}
    assert len(named) > 50
    assert sorted(file for file in named if not (DOCS.parent / file).exists()) == []


def test_names_of_modules_on_pages_exist() -> None:
    pattern = r"\bmmgrpo(?:\.[a-z_]+)+(?:\.[A-Za-z_]+)?\b(?![/:-])(?<!yaml)(?<!github)"
    named = {name for page in PAGES for name in re.findall(pattern, page.read_text(encoding="utf-8"))}
    groups = {f"mmgrpo.{group}" for group in ("settings", "environments")}  # entry points, not modules
    assert len(named) > 20
    assert sorted(name for name in named - groups if not resolves(name)) == []


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", ["how-to/symptoms.md", "how-to/several-gpus.md", "how-to/not-supported.md"])
def test_settings_that_a_page_names_are_keys_of_the_configuration(page: str) -> None:
    documented_keys = set(re.findall(r"^\| `([\w.]+)`", configuration_page(), re.MULTILINE))
    sections = {key.partition(".")[0] for key in documented_keys}
    named = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?::[^`]*)?`", (DOCS / page).read_text())
    keys = {key for key in named if key.partition(".")[0] in sections and not key.endswith(".jsonl")}
    assert len(keys) >= 5
    assert not keys - documented_keys


def test_measures_that_the_symptoms_name_are_logged() -> None:
    text = (DOCS / "how-to/symptoms.md").read_text()
    named = set(re.findall(r"`((?:reward|groups|policy|optimizer|time|eval)/[\w/]+)`", text))
    source = "".join(path.read_text() for path in (CONFIGS.resolve().parent / "mmgrpo").rglob("*.py"))
    assert len(named) >= 15
    for key in named:
        tail = key.rpartition("NAME")[2].lstrip("/_") if "NAME" in key else key
        assert re.search(rf"\b{re.escape(tail)}\b|[{{}}_]{re.escape(tail)}\"", source), key


@pytest.mark.nightly
def test_language_policy_of_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def length(prompts: Any, completions: list[str], **columns: Any) -> list[float]:
        return [float(len(text)) for text in completions]

    model, processor = make_language_model("qwen2.5-vl")
    pictures = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    prompts = [Prompt("what colour", images=[picture]) for picture in pictures]
    before = [parameter.clone() for parameter in model.parameters()]
    folder = page_names("how-to/language.md")["trainer_of"](model, processor, prompts, {"length": length}).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["policy/on_policy_gap"] < 1e-5 for line in lines)
    named = {name: p for name, p in model.named_parameters() if ".lora_B." in name}
    assert named
    assert all(bool(p.any()) for p in named.values())  # trained: they start at zero
    frozen = [p for name, p in model.named_parameters() if ".lora_" not in name]
    assert all(torch.equal(a, b) for a, b in zip(before, frozen, strict=True))


def test_pages_name_no_earlier_keys() -> None:
    named = {
        key for page in PAGES for key in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)\b", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 150
    assert {key: renamed_key(key) for key in named if renamed_key(key) is not None} == {}


def yaml_runs() -> list[tuple[str, dict[str, Any]]]:
    """The runs in the YAML of pages, with the names of the pages."""
    blocks = [
        (page.name, parse_yaml(block))
        for page in PAGES
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    return [(page, run) for page, block in blocks for run in (block, *tasks_in(block))]


def test_settings_of_environments_on_pages_exist() -> None:
    environments = [(run.get("rollout") or {}).get("environment") for _, run in yaml_runs() if isinstance(run, dict)]
    named = [dict(each) for each in environments if isinstance(each, dict) and each["name"] in names("environments")]
    assert len({each["name"] for each in named}) > 10
    for settings in named:
        kind = resolve("environments", settings.pop("name"))
        inspect.signature(kind).bind(**settings)  # raises TypeError for an unknown or absent one


def test_keys_of_the_yaml_on_pages_exist() -> None:
    runs = yaml_runs()
    assert len(runs) > 60
    of_files = ("include", "use_paper_hparams")
    unknown = [(page, key) for page, run in runs for key in unknown_keys(RunConfig, run) if key not in of_files]
    assert unknown == []


def tasks_in(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The tasks of a mixed run, each the values of a run."""
    tasks = values.get("tasks")
    return list(tasks.values()) if isinstance(tasks, dict) else []


def test_counts_on_the_readme_hold() -> None:
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    (num_methods,), (num_rewards,) = re.findall(r"About (\d+) published", text), re.findall(r"than (\d+) rewards", text)
    assert int(num_methods) == round(len(shipped("methods")), -2)
    assert len(names("rewards")) > int(num_rewards)
    assert "Thirteen more quickstarts" in text
    assert len(shipped("quickstart")) == 14
