"""Stand-ins of data sets of the hub: a few rows with the columns, types and nesting of the real ones.

``write_standin`` writes rows as the real data set stores them, and
``standin_config`` is a recipe that reads them in place of the real ones, with all other settings of its prompts.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features
from PIL import Image

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config
from mmgrpo.data.prompt_loading import load_prompts_of
from mmgrpo.scoring import score
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Prompt, Sample

Rows = Sequence[Mapping[str, Any]]


def image_bytes(color: str = "white", size: tuple[int, int] = (24, 16)) -> dict[str, Any]:
    """An image as ``datasets`` stores it: ``{"bytes": ..., "path": ...}``."""
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": "image.png"}


def write_standin(folder: Path, source: str, splits: Mapping[str, Rows], features: Features) -> Path:
    """Writes the rows of a source as it stores them, and returns the path to read them from.

    Args:
        folder: folder of the stand-in.
        source: a file of rows, ``NAME.jsonl``; a file of a dataset of the hub, ``owner/name:NAME.parquet``; else a
            dataset with one parquet file per split, named as ``push_to_hub`` names them.
        splits: rows by split; a file has one.
        features: columns and types.

    Returns:
        The file, or the folder of the dataset.
    """
    (folder / "data").mkdir(parents=True, exist_ok=True)
    files = [folder / "data" / f"{split}-00000-of-00001.parquet" for split in splits]
    for file, rows in zip(files, splits.values(), strict=True):
        dataset = Dataset.from_list([dict(row) for row in rows], features=features)
        if source.endswith(".jsonl"):
            dataset.to_json(file.with_suffix(".jsonl"))
        else:
            dataset.to_parquet(file)
    suffix = Path(source).suffix
    return files[0].with_suffix(suffix) if suffix in (".jsonl", ".parquet") else folder


def standin_config(name: str, sources: Mapping[str, Path], changes: Mapping[str, Any] | None = None) -> RunConfig:
    """The recipe ``name`` with each source of ``sources`` read from a stand-in.

    Args:
        name: shipped name of the recipe.
        sources: source of the recipe, with its subset, -> folder or file of the stand-in.
        changes: further overrides.

    Returns:
        The configuration. Raises KeyError if the recipe has a source that no stand-in replaces.
    """
    config = load_config(name)
    assert config.prompts is not None
    assert config.evaluation is not None
    assert config.evaluation.prompts is not None
    replaced = {
        f"{key}.source": str(sources[section.source])
        for key, section in (("prompts", config.prompts), ("evaluation.prompts", config.evaluation.prompts))
        if section.source is not None and not section.source.startswith("reasoning_gym:")
    }
    return load_config(name, {**replaced, **(changes or {})})


def prompts_of(config: RunConfig) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts of training and of the evaluation."""
    assert config.evaluation is not None
    return load_prompts_of(config.prompts), load_prompts_of(config.evaluation.prompts, key="evaluation.prompts")


def scores_of(config: RunConfig, prompt: Prompt, answers: Sequence[str]) -> list[float]:
    """The weighted sum of the recipe's rewards for each answer to a prompt; each reward applies to each answer."""
    rewards = build_rewards(config.rewards)
    samples = [Sample(prompt, 0, member, text=answer, tokens=(0,)) for member, answer in enumerate(answers)]
    scores = shape_scores(score(samples, rewards), rewards, 0)[0]
    assert scores.valid_BR.all()
    totals = (scores.value_BR * scores.weight_R).sum(1)
    return totals.tolist()
