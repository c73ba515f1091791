"""Commands that load libraries print a line first; names and files are read without them."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest
import torch

from mmgrpo.cli.launch import launch
from mmgrpo.cli.run_inputs import print_importing
from mmgrpo.config.registry import POLICIES, resolve
from mmgrpo.data.arrow_values import require_limit
from mmgrpo.docgen.signatures import summary_line


def test_a_command_that_loads_libraries_prints_a_line_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    print_importing()
    assert capsys.readouterr().err == ""  # loaded already
    monkeypatch.delitem(sys.modules, "torch")
    print_importing()
    assert capsys.readouterr().err == "loading the libraries ...\n"
    monkeypatch.setenv("RANK", "1")
    print_importing()
    assert capsys.readouterr().err == ""  # the first process says it for all
    monkeypatch.delenv("RANK")
    monkeypatch.setattr(os, "execv", lambda path, command: print("started", file=sys.stderr))
    monkeypatch.setenv("MMGRPO_LAUNCHED", "")
    launch("gpus", ["quickstart/digits-image"], processes=2)
    assert capsys.readouterr().err == "starting 2 processes with accelerate launch (gpus) ...\nstarted\n"


def test_the_list_of_policies_has_the_first_lines_of_their_docstrings() -> None:
    for name, target in POLICIES.items():
        assert summary_line(target) == (resolve("policies", name).__doc__ or "").strip().split("\n")[0]
    assert summary_line("no_such_module:Thing") is None
    assert summary_line("mmgrpo.errors:Nothing") is None


def test_rows_of_a_file_are_limited_without_importing_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    require_limit("rows.jsonl", None)
    assert "datasets" not in sys.modules


def test_notices_of_imported_libraries_are_hidden_and_other_messages_are_not(caplog: pytest.LogCaptureFixture) -> None:
    pytree, bitsandbytes = (
        logging.getLogger(name) for name in ("torch.utils._pytree", "bitsandbytes.backends.cpu.ops")
    )
    pytree.warning("%s is an Enum subclass and is now natively supported by torch.compile as an opaque value", "A")
    bitsandbytes.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s.", "no module")
    torchao = logging.getLogger("diffusers.quantizers.torchao.torchao_quantizer")
    torchao.warning("Unable to import `torchao` Tensor objects. This may affect loading checkpoints")
    assert caplog.text == ""
    pytree.warning("%s cannot be registered", "A")
    bitsandbytes.warning("gemm_4bit_forward failed: %s", "no memory")
    assert [record.getMessage() for record in caplog.records] == [
        "A cannot be registered",
        "gemm_4bit_forward failed: no memory",
    ]
