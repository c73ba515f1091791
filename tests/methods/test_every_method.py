"""Every shipped method has numbers that are worked out by hand or taken from the authors' code."""

from __future__ import annotations

import re
from pathlib import Path

from mmgrpo.config.loading import CONFIGS, find_config, read_layers, shipped

HERE = Path(__file__).parent
CHAINS = ("svs", "delethink", "motif", "clpo", "canoe", "multi-module-grpo", "critique-rl")
ELSEWHERE = {
    **dict.fromkeys(CHAINS, "configs/test_chain_methods.py"),
    **dict.fromkeys(("sfpo", "multiple-ticket-hypothesis", "rlvr-linearity"), "training/test_hooks.py"),
    **dict.fromkeys(("tis", "sequence-tis", "mis", "sequence-mis", "icepop"), "configs/test_engine_methods.py"),
    "dppo-kl": "methods/selection/test_dppo_tv.py",
    "ead": "policies/test_language_sampling.py",
    "opsd": "methods/views/test_sdft.py",
    "spec-rl": "training/test_drafts.py",
    "verl": "maths/test_internals.py",
}
"""Methods whose numbers are of sampling, of several calls, of the update or of another method's test -> its file."""


def test_every_method_has_a_number() -> None:
    """Those with an option of TRL are compared with TRL in ``configs/test_methods_against_trl.py``."""
    names = {name.removeprefix("methods/") for name in shipped("methods")}
    in_trl = {name for name in names if read_layers(find_config(f"methods/{name}"))["about"]["method"].get("trl")}
    with_file = {
        path.stem
        for path in CONFIGS.glob("methods/*/*.yaml")
        if (HERE / path.parent.name / f"test_{re.sub('-+', '_', path.stem)}.py").exists()
    }
    assert names == with_file | in_trl | set(ELSEWHERE)
    assert [name for name in ELSEWHERE if name in with_file] == []
    assert [file for file in ELSEWHERE.values() if not (HERE.parent / file).exists()] == []


def test_every_file_is_that_of_a_method() -> None:
    kinds = {re.sub("-+", "_", path.stem): path.parent.name for path in CONFIGS.glob("methods/*/*.yaml")}
    files = {path.stem.removeprefix("test_"): path.parent.name for path in HERE.glob("*/test_*.py")}
    assert files == {name: kinds.get(name) for name in files}
