"""``mmgrpo export``: stock libraries load its output and give the policy's results; cards; pushing."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml
from mmgrpo.examples.digits import digit_prompts
from peft import PeftModel
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.cli.run_inputs import policy_of
from mmgrpo.config.loading import load_config, validated
from mmgrpo.report.model_card import card_of, code, license_of
from mmgrpo.runs.adapter_files import absolute_base, copy_adapters
from mmgrpo.runs.best import best_checkpoint
from mmgrpo.system import hub
from mmgrpo.training.build import build_policy
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt
from tests.test_trainer import BASE, CALL, brightness
from tests.test_trainer_language import TEXTS, vowels
from tests.tiny import language_models

TOKENS = torch.tensor([[5, 9, 2, 14, 7, 3]])
LORA = {"rank": 2, "alpha": 4.0}
CARD = "---\nlicense: apache-2.0\nlicense_link: https://example.org/x\n---\n# A tiny model\n"


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def written(output: Path, *, lora: dict[str, Any] | None, **changes: Any) -> Path:
    """A run of a few updates of a small language model in a folder, with a model card."""
    model = output / "model"
    model.mkdir(parents=True)
    language_models.save("llama", model)
    (model / "README.md").write_text(CARD)
    values = {
        "about": {"name": "writing"},
        "output": str(output),
        "runtime": {"device": "cpu"},
        "policy": {"name": "language", "model": str(model), "lora": lora, "max_new_tokens": 7},
        "rollout": {"prompts_per_step": 2, "group_size": 4},
        "update": {"optimizer": {"lr": 0.05}},
        "steps": 2,
        **changes,
    }
    config = Trainer(build_policy(validated(values), "cpu"), {"vowels": vowels}, PROMPTS, values)
    return config.train()


PROMPTS = [Prompt(text) for text in TEXTS[:2]]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("adapters"), lora=LORA)


@pytest.fixture(scope="module")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(
        tmp_path_factory.mktemp("whole"), lora=None, update={"optimizer": {"lr": 0.01}, "ema": {"decay": 0.5}}
    )


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits


def gap(model: Any, run: Path) -> float:
    """How far a model is from the policy of a run, and that the policy is another than the model it began from."""
    trained = logits_of(policy_of(load_config(run / "config.yaml"), run).model)  # pyrefly: ignore[missing-attribute]
    untrained = logits_of(AutoModelForCausalLM.from_pretrained(run.parent / "model"))
    assert (trained - untrained).norm() > 0.01 * untrained.norm()
    return float((logits_of(model) - trained).norm() / trained.norm())


def head_of(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "README.md").read_text().split("---")[1])


@pytest.mark.nightly
def test_peft_loads_the_adapters_onto_the_base(adapters: Path, tmp_path: Path) -> None:
    done = call("export", str(adapters), "--to", str(tmp_path / "x"))
    assert done.exit_code == 0, done.output
    assert f"exported to {tmp_path / 'x'}" in done.output.replace("\n", "")
    adapter_config = json.loads((tmp_path / "x" / "adapter_config.json").read_text())
    assert adapter_config["base_model_name_or_path"] == str(adapters.parent / "model")
    base = AutoModelForCausalLM.from_pretrained(adapter_config["base_model_name_or_path"])
    assert gap(PeftModel.from_pretrained(base, tmp_path / "x").eval(), adapters) < 1e-6
    assert AutoTokenizer.from_pretrained(tmp_path / "x")("how many").input_ids  # pyrefly: ignore[not-callable]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]  # nothing half written is left
    assert not (tmp_path / "x" / "kept").exists()
    assert (tmp_path / "x" / "mmgrpo.yaml").read_text() == (adapters / "config.yaml").read_text()


@pytest.mark.nightly
def test_relative_path_of_a_base_becomes_absolute(
    adapters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(adapters.parent)
    (tmp_path / "x").mkdir()
    assert absolute_base("model") == str(adapters.parent / "model")
    assert absolute_base("Qwen/Qwen2.5-3B") == "Qwen/Qwen2.5-3B"
    policy = {"name": "language", "model": "model"}
    config = yaml.safe_load((adapters / "config.yaml").read_text()) | {"policy": policy}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    (weights,) = adapters.glob("checkpoints/*/policy")
    card = card_of(tmp_path, weights, name="x", weights="w")
    assert f"AutoModelForCausalLM.from_pretrained({str(adapters.parent / 'model')!r}, " in card
    copy_adapters(weights, exported := tmp_path / "x", base="model", revision=None)
    assert json.loads((exported / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        adapters.parent / "model"
    )


@pytest.mark.nightly
def test_adapters_are_merged_into_the_model(adapters: Path, tmp_path: Path) -> None:
    assert call("export", str(adapters), "--to", str(tmp_path / "x"), "--merged").exit_code == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "x")
    assert not [key for key in model.state_dict() if "lora" in key]
    assert gap(model, adapters) < 2e-6  # the sum of weight and adapters is rounded to float32
    done = call("export", str(adapters), "--to", str(tmp_path / "x"), "--merged", "--dtype", "bfloat16")
    assert done.exit_code == 0, done.output
    halved = AutoModelForCausalLM.from_pretrained(tmp_path / "x-2", dtype="auto")
    assert halved.dtype == torch.bfloat16
    assert 1e-6 < gap(halved.float(), adapters) < 0.05


@pytest.mark.nightly
def test_all_weights_are_written_averaged_where_they_are(full_run: Path, tmp_path: Path) -> None:
    assert (full_run / "checkpoints/step-000002/average").is_dir()
    done = call("export", str(full_run / "checkpoints/step-000002"), "--to", str(tmp_path / "x"))
    assert done.exit_code == 0, done.output
    assert gap(AutoModelForCausalLM.from_pretrained(tmp_path / "x"), full_run) == 0.0
    assert "the weights of step-000002, averaged over its updates" in (tmp_path / "x/README.md").read_text()


@pytest.mark.nightly
def test_the_best_is_written_if_requested(tmp_path: Path) -> None:
    evaluation = {"prompts": {"source": "python:tests.test_export:held_out_prompts"}, "every": 1}
    checkpoint = {"every": 1, "keep": 1, "best": "vowels"}
    run = written(tmp_path, lora=LORA, steps=3, evaluation=evaluation, checkpoint=checkpoint)
    best = best_checkpoint(run)
    done = call("export", str(run), "--best", "--to", str(tmp_path / "x"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "x/adapter_model.safetensors").read_bytes() == (
        best / "policy/adapter_model.safetensors"
    ).read_bytes()
    assert f"the weights of {best.name}" in (tmp_path / "x/README.md").read_text()


def held_out_prompts() -> list[Prompt]:
    return PROMPTS


@pytest.mark.nightly
def test_diffusers_loads_the_adapters_of_a_pipeline(tmp_path: Path) -> None:
    """The file that the run has saved, which tests/policies/test_denoising_weights.py loads into stock pipelines."""
    policy = {
        "name": "denoising",
        "model": "python:mmgrpo.examples.pipelines:digits_pipeline",
        "call": CALL,
        "lora": LORA,
    }
    values = {**BASE, "steps": 1, "output": str(tmp_path), "policy": policy}
    run = Trainer(build_policy(validated(values), "cpu"), {"b": brightness}, digit_prompts(), values).train()
    Image.new("RGB", (4, 2)).save(run / "preview.png")
    done = call("export", str(run), "--to", str(tmp_path / "x"))
    assert done.exit_code == 0, done.output
    name = "pytorch_lora_weights.safetensors"
    assert (tmp_path / "x" / name).read_bytes() == (run / "checkpoints/step-000001/average" / name).read_bytes()
    assert head_of(tmp_path / "x")["library_name"] == "diffusers"
    card = (tmp_path / "x/README.md").read_text()
    assert 'pipeline.load_lora_weights("THIS_FOLDER_OR_REPOSITORY")' in card
    assert "![The same requests before and after training](preview.png)" in card
    assert Image.open(tmp_path / "x/preview.png").size == (4, 2)


@pytest.mark.nightly
def test_a_complete_pipeline_loads_by_the_code_of_its_card(tmp_path: Path) -> None:
    """Stable Diffusion 3 without its T5, which diffusers must be configured for."""
    model = {"name": "denoising", "model": "python:mmgrpo.examples.pipelines:digits_pipeline", "call": CALL}
    values = {**BASE, "steps": 1, "output": str(tmp_path), "policy": {**model, "lora": None}}
    run = Trainer(build_policy(validated(values), "cpu"), {"b": brightness}, digit_prompts(), values).train()
    assert call("export", str(run), "--to", str(tmp_path / "x")).exit_code == 0
    (code,) = re.findall(
        r"```python\n(import torch\nfrom diffusers .*?)```", (tmp_path / "x/README.md").read_text(), re.DOTALL
    )
    assert "text_encoder_3=None" in code
    result: dict[str, Any] = {}
    exec(code.replace("THIS_FOLDER_OR_REPOSITORY", str(tmp_path / "x")), result)
    trained = load_file(run / "checkpoints/step-000001/average/transformer/diffusion_pytorch_model.safetensors")
    loaded = result["model"].transformer.state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in trained.items())


def test_the_card_names_the_source_of_a_model(adapters: Path, tmp_path: Path) -> None:
    call("export", str(adapters), "--to", str(tmp_path / "x"))
    head, text = head_of(tmp_path / "x"), (tmp_path / "x/README.md").read_text()
    assert head == {
        "library_name": "peft",
        "tags": ["mmgrpo", "reinforcement-learning", "lora"],
        "license": "apache-2.0",
        "license_link": "https://example.org/x",
    }
    rows = [json.loads(line) for line in (adapters / "metrics.jsonl").read_text().splitlines()]
    about = json.loads((adapters / "run.json").read_text())
    assert f"| 2 | {rows[-1]['reward/mean']:.3f} |" in text
    assert f"| `base model` | `{adapters.parent / 'model'}` |" in text
    assert about["command"] in text
    assert f"| `mmgrpo` | `{about['versions']['mmgrpo']}` |" in text
    assert "model = PeftModel.from_pretrained(base," in text


def test_texts_of_a_foreign_run_are_code_in_its_card(adapters: Path, tmp_path: Path) -> None:
    """No markup, no link, no further front matter, whatever it is."""
    run = tmp_path / "run"
    shutil.copytree(adapters, run)
    evil = "</code><script>alert(1)</script> [x](javascript:y) ```\n---\nlicense: mine\n---\n| a | `` b"
    about = json.loads((run / "run.json").read_text()) | {"command": evil, "explain": evil, "versions": {evil: evil}}
    (run / "run.json").write_text(json.dumps(about))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config |= {"about": {"method": {"name": "m", "title": evil, "paper": evil}}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    done = call("export", str(run), "--to", str(tmp_path / "x"))
    assert done.exit_code == 0, done.output
    assert "license" not in head_of(tmp_path / "x") or head_of(tmp_path / "x")["license"] == "apache-2.0"
    text = (tmp_path / "x/README.md").read_text().split("---\n", 2)[2]
    assert "<script>" in text  # as code
    assert "<script>" not in without_code(text)
    assert "javascript" not in without_code(text)


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints/step-000002/policy", "checkpoints"])
def test_links_out_of_a_foreign_run_are_not_followed(name: str, adapters: Path, tmp_path: Path) -> None:
    """What they lead to would be exported, and pushed, as if it were the run's."""
    run = tmp_path / "run"
    shutil.copytree(adapters, run)
    (run / "checkpoints/step-000002/manifest.json").unlink()  # a stranger need not give one
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    done = call("export", str(run), "--to", str(tmp_path / "x"))
    assert done.exit_code == 2
    assert f"leads out of {run}" in done.stderr.replace("\n", " ")
    assert not (tmp_path / "x").exists()
    assert call("export", str(run), "--to", str(tmp_path / "x"), "--trust").exit_code == 0


def without_code(text: str) -> str:
    """Markdown without its fenced blocks and spans of code, as CommonMark finds them."""
    text = re.sub(r"(?ms)^(`{3,})[a-z]*\n.*?^\1\n", "", text)
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a", "`a`"), ("a`b", "``a`b``"), ("``", "``` `` ```"), ("", "`-`"), (" a\n b ", "`a b`"), ("a|b", "`a\\|b`")],
)
def test_a_span_of_code_ends_where_it_should(text: str, expected: str) -> None:
    assert code(text) == expected


def test_the_license_is_that_of_the_bases_card_or_not_known(tmp_path: Path) -> None:
    assert license_of(str(tmp_path)) == {}
    for text, expected in (
        (CARD, {"license": "apache-2.0", "license_link": "https://example.org/x"}),
        ("---\nlicense: other\nlicense_name: my licence\n---\n", {"license": "other", "license_name": "my licence"}),
        ("---\nlicense: '<b>'\n---\n", {}),
        ("---\n[", {}),
        ("no card", {}),
    ):
        (tmp_path / "README.md").write_text(text)
        assert license_of(str(tmp_path)) == expected
    assert license_of("owner/no-such-model-here") == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtype", "bfloat16"], "--dtype needs --merged, which writes a full model"),
        (["--public"], "--public needs --push OWNER/NAME"),
        (["--best"], "keeps no best checkpoint"),
    ],
)
def test_invalid_exports_raise_and_write_no_file(
    options: list[str], message: str, adapters: Path, tmp_path: Path
) -> None:
    done = call("export", str(adapters), "--to", str(tmp_path / "x"), *options)
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_merging_is_of_adapters_and_an_export_of_a_run(full_run: Path, tmp_path: Path) -> None:
    done = call("export", str(full_run), "--to", str(tmp_path / "x"), "--merged")
    assert "holds full weights, not adapters" in done.stderr.replace("\n", " ")
    assert "is no run folder and no checkpoint" in call("export", str(tmp_path)).stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


class Hub:
    """Records the calls."""

    calls: ClassVar[list[Any]] = []

    def create_repo(self, repository: str, **named: Any) -> None:
        self.calls.append((repository, named))

    def upload_folder(self, **named: Any) -> Any:
        self.calls.append(named)
        return type("Done", (), {"commit_url": "https://hub/owner/name/commit/1"})


def test_a_folder_is_pushed_as_a_private_repository(
    adapters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "token")
    done = call("export", str(adapters), "--to", str(tmp_path / "x"), "--push", "owner/name")
    assert done.exit_code == 0, done.output
    assert "pushed: https://hub/owner/name/commit/1" in done.output
    created, uploaded = Hub.calls
    assert created == ("owner/name", {"repo_type": "model", "private": True, "exist_ok": True})
    assert (uploaded["repo_id"], uploaded["folder_path"]) == ("owner/name", tmp_path / "x")
    assert hub.push(tmp_path / "x", "owner/name", public=True, message="m").startswith("https://hub/")
    assert Hub.calls[2][1]["private"] is False


def test_without_a_token_or_a_hub_it_raises_and_the_folder_stays(
    adapters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    done = call("export", str(adapters), "--to", str(tmp_path / "x"), "--push", "owner/name")
    assert done.exit_code == 2
    output = done.stderr.replace("\n", " ")
    assert "owner/name cannot be written: you are not logged in; log in (hf auth login), or set HF_TOKEN" in output
    assert f"the export stays in {tmp_path / 'x'}" in output
    assert (tmp_path / "x/README.md").is_file()
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "token")

    class Down(Hub):
        def create_repo(self, repository: str, **named: Any) -> None:
            raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.HfApi", Down)
    done = call("export", str(adapters), "--to", str(tmp_path / "x"), "--push", "owner/name")
    assert (done.exit_code, "owner/name cannot be written: " in done.stderr.replace("\n", " ")) == (2, True)
    done = call("export", str(adapters), "--to", str(tmp_path / "x"), "--push", "no name")
    assert "'no name' is not a valid repository name (owner/name)" in done.stderr.replace("\n", " ")
