"""``mmgrpo export``: a folder that diffusers, peft or transformers loads, with a card, and its way to the hub."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.cli.run_inputs import is_run, policy_of, say_importing, single_settings_of, weights_for
from mmgrpo.errors import ConfigError

if TYPE_CHECKING:
    from mmgrpo.config import RunConfig

CARD, CONFIG = "README.md", "mmgrpo.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What of a run is exported, and where to.

    Attributes:
        to: the folder; None: one in ``exports``, by the run's name.
        merged: whether adapters become part of the model.
        dtype: of a whole model; None: as it was loaded.
        best: whether it is the run's best checkpoint.
        task: of a mixed run.
        trust: whether a run of others may name the code that its model is loaded by.
    """

    to: Path | None = None
    merged: bool = False
    dtype: str | None = None
    best: bool = False
    task: str | None = None
    trust: bool = False


def export_run(run: str, wanted: ExportRequest) -> Path:
    """Writes the export, all of it or nothing.

    Adapters are copied from the checkpoint and nothing is loaded; a whole model is loaded, merged and written.

    Args:
        run: a run folder or checkpoint.
        wanted: what of it.

    Returns:
        The folder.

    Raises:
        ConfigError: it is no run, or what is wanted cannot be.
        CheckpointError: the run has no sound checkpoint.
        OutputError: the folder cannot be written.
    """
    if not is_run(run):
        raise ConfigError(f"{run} is no run folder and no checkpoint: give one of those that train has written")
    say_importing()
    from mmgrpo.runs.exporting import copy_adapters, has_adapters
    from mmgrpo.runs.folder import CONFIG as RUN_CONFIG
    from mmgrpo.runs.folder import claimed
    from mmgrpo.runs.resuming import config_of, run_of, weights_at
    from mmgrpo.runs.trust import require_within
    from mmgrpo.system.files import sync_tree, writing

    checkpoint = weights_for(run, None, wanted.task, best=wanted.best)
    assert checkpoint is not None
    weights, folder = weights_at(checkpoint), run_of(checkpoint)
    require_within(folder, folder / RUN_CONFIG, trust=wanted.trust)
    require_within(run_of(weights.parent), weights, trust=wanted.trust)
    adapters = has_adapters(weights)
    if wanted.merged and not adapters:
        raise ConfigError(f"--merged: {weights} holds no adapters but all weights; leave --merged out")
    if wanted.dtype and adapters and not wanted.merged:
        raise ConfigError("--dtype is of a model that is written whole: add --merged; adapters stay in float32")
    policy_values = _policy_values(config_of(checkpoint))
    name = f"{folder.name}-{weights.parent.name}"
    target = claimed(wanted.to or Path("exports") / folder.name)
    partial = target.with_name(f".{target.name}.part")
    try:
        with writing(target):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            if adapters and not wanted.merged:
                copy_adapters(weights, partial, base=policy_values.get("model"), revision=policy_values.get("revision"))
            else:
                settings = single_settings_of(run, None, wanted.task, trust=wanted.trust)
                _write_whole(settings, checkpoint, partial, wanted.dtype)
            _describe(folder, partial, name=name, weights=_in_words(weights))
            sync_tree(partial)
            partial.replace(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        target.rmdir()
        raise
    return target


def push_export(folder: Path, repository: str, *, public: bool) -> str:
    """Uploads an export; gives the address of the commit. Raises ConfigError, which names what is left, if not."""
    from mmgrpo.system.hub import push

    try:
        return push(folder, repository, public=public, message=f"Export of {folder.name} by mmgrpo")
    except ConfigError as error:
        raise ConfigError(f"{error}; what was exported stays in {folder}") from error


def _policy_values(config: Path) -> dict[str, str]:
    """What of the section ``policy`` is text, read without the policy."""
    from mmgrpo.config.loading import read_layers

    policy = read_layers(config).get("policy")
    return {key: value for key, value in (policy if isinstance(policy, dict) else {}).items() if isinstance(value, str)}


def _write_whole(settings: RunConfig, checkpoint: Path, directory: Path, dtype: str | None) -> None:
    from mmgrpo.policy import SupportsExport

    policy = policy_of(settings, checkpoint)
    if not isinstance(policy, SupportsExport):
        raise ConfigError(
            f"{type(policy).__name__} has no method export(directory, dtype=...), so its model cannot be written as a "
            "whole: add one that writes the files of your library (mmgrpo.policy.SupportsExport), or use the "
            "checkpoint: "
            f"its policy/ is what {type(policy).__name__}.save wrote, and mmgrpo sample and evaluate take the run"
        )
    policy.export(directory, dtype=dtype)


def _describe(run: Path, directory: Path, *, name: str, weights: str) -> None:
    from mmgrpo.report.model_card import card_of
    from mmgrpo.runs.folder import CONFIG as RUN_CONFIG

    shutil.copyfile(run / RUN_CONFIG, directory / CONFIG)
    (directory / CARD).write_text(card_of(run, directory, name=name, weights=weights), encoding="utf-8")


def _in_words(weights: Path) -> str:
    averaged = ", averaged over its updates" if weights.name == "average" else ""
    return f"the weights of {weights.parent.name}{averaged}"
