"""Calls that the source must not contain; and checkpoint files that would execute code."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.rewards.models.checkpoints import load_state_dict

from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.runs.checkpoint import MANIFEST, TRAINING, RunPosition, load_checkpoint, save_checkpoint
from tests.test_architecture import module_name, parsed, source_files
from tests.test_docs import page_names

UNPICKLING = ("pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")

RUNS_TEXT = {"mmgrpo.environments.python_worker", "mmgrpo.rewards.code.program_protocol"}
"""The programs that run in the sandbox."""

LOADS_FOREIGN_CODE = {
    "mmgrpo.policies.masked.settings",
    "mmgrpo.policies.masked.masked_loading",
    "mmgrpo.policies.text_models",
    "mmgrpo.runs.trust",
    "mmgrpo.trl.arguments",
    "mmgrpo.trl.loaded_policy",
    "mmgrpo.trl.run_values",
}
"""Where ``trust_remote_code`` may be written: as off, and as a user's setting."""


NAMES = (
    *UNPICKLING,
    "load",
    "load_all",
    "unsafe_load",
    "unsafe_load_all",
    "full_load",
    "eval",
    "exec",
    "shell",
    "system",
)
WORDS = re.compile(rf"\b({'|'.join((*NAMES, 'trust_remote_code'))})\b")
"""The words that these tests look for: modules without them need not be parsed."""


@cache
def modules() -> dict[str, ast.Module]:
    """The modules with one of these words, by their imported names."""
    return {module_name(path): parsed(path) for path in source_files() if WORDS.search(path.read_text())}


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """(module, what is called as it is written, the call) of all our code."""
    return [
        (module, dotted(node.func), node)
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]


def dotted(function: ast.expr) -> str:
    """A name with its attributes, as it is written; of what is called otherwise, the attributes."""
    if isinstance(function, ast.Attribute):
        return f"{dotted(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(keyword_.value) for keyword_ in call.keywords if keyword_.arg == name), None)


def test_no_file_is_unpickled() -> None:
    imported = [
        f"{module}: {name}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        if name.split(".")[0] in UNPICKLING
    ]
    assert imported == ["mmgrpo.policies.engines.weight_transfer: pickle"]  # handles that vLLM unpickles
    assert [name for _, name, _ in calls() if name.startswith("pickle.")] == ["pickle.dumps"]
    loads = [(module, keyword(call, "weights_only")) for module, name, call in calls() if name == "torch.load"]
    assert dict(loads) == {"mmgrpo.runs.checkpoint": "True", "mmgrpo.rewards.models.checkpoints": "True"}
    arrays = [(module, call) for module, name, call in calls() if name in ("np.load", "numpy.load")]
    assert [module for module, call in arrays if keyword(call, "allow_pickle") not in (None, "False")] == []


def test_no_text_is_executed() -> None:
    assert {module for module, name, _ in calls() if name in ("eval", "exec")} == RUNS_TEXT
    assert [module for module, name, call in calls() if keyword(call, "shell") == "True" or name == "os.system"] == []
    unsafe = ("yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "yaml.unsafe_load_all")
    assert [module for module, name, _ in calls() if name in unsafe] == []
    assert {module for module, name, _ in calls() if name == "yaml.load"} == {"mmgrpo.system.yamls"}  # its own loader


def test_code_of_a_hub_is_spoken_of_where_it_is_known() -> None:
    named = {
        module
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if "trust_remote_code" in (getattr(node, "id", ""), getattr(node, "arg", ""), getattr(node, "value", ""))
    }
    assert named == LOADS_FOREIGN_CODE


class Planted:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_a_checkpoint_with_a_pickle_raises_and_runs_no_code(tmp_path: Path) -> None:
    policy: Any = page_names("learn/smallest-policy.md")["LetterPolicy"]()
    checkpoint = save_checkpoint(tmp_path, RunPosition(1, 0), policy, {"optimizer": {}}, keep=None)
    planted = pickle.dumps(Planted(tmp_path / "ran"))
    (checkpoint / TRAINING).write_bytes(planted)
    (checkpoint / MANIFEST).unlink()  # as if a stranger had written it
    with pytest.raises(CheckpointError, match="cannot be read: UnpicklingError"):
        load_checkpoint(checkpoint, policy, "cpu")
    with zipfile.ZipFile(checkpoint / TRAINING, "w") as archive:
        archive.writestr("archive/data.pkl", planted)
        archive.writestr("archive/version", "3\n")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(checkpoint, policy, "cpu")
    (checkpoint / "policy/letters.safetensors").write_bytes(planted)
    with pytest.raises(CheckpointError, match="cannot be read: SafetensorError"):
        load_checkpoint(checkpoint, policy, "cpu")
    assert not (tmp_path / "ran").exists()


MODEL_CODE = """
from pathlib import Path
Path({mark!r}).touch()
from transformers import LlamaConfig
class PlantedConfig(LlamaConfig):
    model_type = "planted"
"""


def test_code_of_a_model_is_not_run_at_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "planted", "auto_map": {"AutoConfig": "planted.PlantedConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "planted.py").write_text(MODEL_CODE.format(mark=str(tmp_path / "ran")))
    monkeypatch.setattr("builtins.input", lambda *arguments: "y")
    with pytest.raises(ConfigError, match="cannot be loaded as a language model"):
        LanguagePolicy.from_config({"model": str(tmp_path)})
    assert not (tmp_path / "ran").exists()


def test_a_pipelines_own_code_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": ["planted_pipeline", "Planted"]}))
    (tmp_path / "planted_pipeline.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
        "from diffusers import DiffusionPipeline\nclass Planted(DiffusionPipeline):\n    def __init__(self): pass\n"
    )
    with pytest.raises(ConfigError, match="cannot be loaded as a diffusers pipeline"):
        DenoisingPolicy.from_config({"model": str(tmp_path)})
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_of_a_judge_run_no_code(tmp_path: Path) -> None:
    (tmp_path / "judge.pt").write_bytes(pickle.dumps(Planted(tmp_path / "ran")))
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        load_state_dict(str(tmp_path / "judge.pt"))
    assert not (tmp_path / "ran").exists()
