"""``mmgrpo export``: a folder that diffusers, peft or transformers loads, with a model card; uploads it to the hub."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.cli.run_inputs import is_run, policy_of, print_importing, single_settings_of, weights_for
from mmgrpo.errors import ConfigError

if TYPE_CHECKING:
    from mmgrpo.config import RunConfig

CARD, CONFIG = "README.md", "mmgrpo.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """The options of an export.

    Attributes:
        to: output folder; None: ``exports/RUN``.
        merged: whether adapters are merged into the model.
        dtype: data type of a full model; None: as it was loaded.
        best: whether to export the best checkpoint of the run.
        task: task of a mixed run.
        trust: whether someone else's run may name the code that loads its model.
    """

    to: Path | None = None
    merged: bool = False
    dtype: str | None = None
    best: bool = False
    task: str | None = None
    trust: bool = False


def export_run(run: str, request: ExportRequest) -> Path:
    """Writes the export atomically.

    Adapters are copied from the checkpoint without loading a model; a full model is loaded, merged and written.

    Args:
        run: a run folder or checkpoint.
        request: the options.

    Returns:
        The folder.

    Raises:
        ConfigError: ``run`` is no run, or the options do not fit it.
        CheckpointError: the run has no valid checkpoint.
        OutputError: the folder cannot be written.
    """
    if not is_run(run):
        raise ConfigError(f"{run} is no run folder and no checkpoint: pass one that mmgrpo train wrote")
    print_importing()
    from mmgrpo.runs.adapter_files import copy_adapters, has_adapters
    from mmgrpo.runs.folder import CONFIG as RUN_CONFIG
    from mmgrpo.runs.folder import create_numbered_folder
    from mmgrpo.runs.resuming import config_file_of, policy_weights_folder, run_folder_of
    from mmgrpo.runs.trust import require_inside_run
    from mmgrpo.system.files import output_errors, sync_tree

    checkpoint = weights_for(run, None, request.task, best=request.best)
    assert checkpoint is not None
    weights, folder = policy_weights_folder(checkpoint), run_folder_of(checkpoint)
    require_inside_run(folder, folder / RUN_CONFIG, trust=request.trust)
    require_inside_run(run_folder_of(weights.parent), weights, trust=request.trust)
    adapters = has_adapters(weights)
    if request.merged and not adapters:
        raise ConfigError(f"--merged: {weights} holds full weights, not adapters; remove --merged")
    if request.dtype and adapters and not request.merged:
        raise ConfigError("--dtype needs --merged, which writes a full model; adapters stay in float32")
    policy_values = _policy_values(config_file_of(checkpoint))
    name = f"{folder.name}-{weights.parent.name}"
    target = create_numbered_folder(request.to or Path("exports") / folder.name)
    partial = target.with_name(f".{target.name}.part")
    try:
        with output_errors(target):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            if adapters and not request.merged:
                copy_adapters(weights, partial, base=policy_values.get("model"), revision=policy_values.get("revision"))
            else:
                settings = single_settings_of(run, None, request.task, trust=request.trust)
                _write_full_model(settings, checkpoint, partial, request.dtype)
            _write_card(folder, partial, name=name, weights=_in_words(weights))
            sync_tree(partial)
            partial.replace(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        target.rmdir()
        raise
    return target


def push_export(folder: Path, repository: str, *, public: bool) -> str:
    """Uploads an export; returns the URL of the commit. Raises ConfigError, which names the folder, on failure."""
    from mmgrpo.system.hub import push

    try:
        return push(folder, repository, public=public, message=f"Export of {folder.name} by mmgrpo")
    except ConfigError as error:
        raise ConfigError(f"{error}; the export stays in {folder}") from error


def _policy_values(config: Path) -> dict[str, str]:
    """The text values of the section ``policy``, read without building the policy."""
    from mmgrpo.config.loading import read_layers

    policy = read_layers(config).get("policy")
    return {key: value for key, value in (policy if isinstance(policy, dict) else {}).items() if isinstance(value, str)}


def _write_full_model(settings: RunConfig, checkpoint: Path, directory: Path, dtype: str | None) -> None:
    from mmgrpo.policy import SupportsExport

    policy = policy_of(settings, checkpoint)
    if not isinstance(policy, SupportsExport):
        raise ConfigError(
            f"{type(policy).__name__} has no method export(directory, dtype=...), so its full model cannot be written: "
            "add one that writes the files of your library (mmgrpo.policy.SupportsExport), or use the checkpoint: "
            f"its policy/ folder was written by {type(policy).__name__}.save; mmgrpo sample and evaluate load the run"
        )
    policy.export(directory, dtype=dtype)


def _write_card(run: Path, directory: Path, *, name: str, weights: str) -> None:
    from mmgrpo.report.model_card import card_of
    from mmgrpo.report.page import PREVIEW
    from mmgrpo.report.run_files import RunFiles
    from mmgrpo.runs.folder import CONFIG as RUN_CONFIG

    shutil.copyfile(run / RUN_CONFIG, directory / CONFIG)
    if picture := RunFiles(run).regular_file(run / PREVIEW):
        shutil.copyfile(picture, directory / PREVIEW)
    (directory / CARD).write_text(card_of(run, directory, name=name, weights=weights), encoding="utf-8")


def _in_words(weights: Path) -> str:
    averaged = ", averaged over its updates" if weights.name == "average" else ""
    return f"the weights of {weights.parent.name}{averaged}"
