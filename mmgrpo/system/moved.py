"""Where modules are now that people may have named in a configuration, and what names in modules became."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import NoReturn, final

from mmgrpo.errors import ConfigError

MOVED: Mapping[str, str] = {
    "mmgrpo.binding": "mmgrpo.config.binding",
    "mmgrpo.build": "mmgrpo.train.build",
    "mmgrpo.catalogue": "mmgrpo.docgen.catalogue",
    "mmgrpo.checkpoint": "mmgrpo.run.checkpoint",
    "mmgrpo.credit": "mmgrpo.train.credit",
    "mmgrpo.learner": "mmgrpo.train.learner",
    "mmgrpo.loading": "mmgrpo.config.loading",
    "mmgrpo.media": "mmgrpo.data.media",
    "mmgrpo.methods": "mmgrpo.docgen.methods",
    "mmgrpo.policies.quickstart": "mmgrpo.examples.pipelines",
    "mmgrpo.policies.quickstart_language": "mmgrpo.examples.language_models",
    "mmgrpo.prompt_rows": "mmgrpo.data.rows",
    "mmgrpo.prompts": "mmgrpo.data.prompts",
    "mmgrpo.reference": "mmgrpo.docgen.configuration",
    "mmgrpo.registry": "mmgrpo.config.registry",
    "mmgrpo.rewards.actions": "mmgrpo.rewards.grounding.actions",
    "mmgrpo.rewards.answers": "mmgrpo.rewards.text.answers",
    "mmgrpo.rewards.arithmetic": "mmgrpo.examples.arithmetic",
    "mmgrpo.rewards.boxes": "mmgrpo.rewards.geometry.boxes",
    "mmgrpo.rewards.calls": "mmgrpo.rewards.grounding.calls",
    "mmgrpo.rewards.captions": "mmgrpo.rewards.text.captions",
    "mmgrpo.rewards.charts": "mmgrpo.rewards.text.charts",
    "mmgrpo.rewards.checkpoints": "mmgrpo.rewards.models.checkpoints",
    "mmgrpo.rewards.clip_models": "mmgrpo.rewards.models.clip_models",
    "mmgrpo.rewards.clip_scores": "mmgrpo.rewards.images.clip_scores",
    "mmgrpo.rewards.compositional": "mmgrpo.rewards.images.compositional",
    "mmgrpo.rewards.compositional_prompts": "mmgrpo.rewards.images.compositional_prompts",
    "mmgrpo.rewards.coordinates": "mmgrpo.rewards.geometry.coordinates",
    "mmgrpo.rewards.detectors": "mmgrpo.rewards.images.detectors",
    "mmgrpo.rewards.digits": "mmgrpo.examples.digits",
    "mmgrpo.rewards.endpoints": "mmgrpo.rewards.judges.endpoints",
    "mmgrpo.rewards.grounding": "mmgrpo.rewards.grounding.localization",
    "mmgrpo.rewards.image_features": "mmgrpo.rewards.models.image_features",
    "mmgrpo.rewards.image_reward": "mmgrpo.rewards.images.image_reward",
    "mmgrpo.rewards.judges": "mmgrpo.rewards.judges.looking",
    "mmgrpo.rewards.lengths": "mmgrpo.rewards.text.lengths",
    "mmgrpo.rewards.letters": "mmgrpo.rewards.parsing.letters",
    "mmgrpo.rewards.masks": "mmgrpo.rewards.grounding.masks",
    "mmgrpo.rewards.math_worker": "mmgrpo.rewards.text.math_worker",
    "mmgrpo.rewards.mathematics": "mmgrpo.rewards.text.mathematics",
    "mmgrpo.rewards.motion": "mmgrpo.rewards.video.motion",
    "mmgrpo.rewards.ngrams": "mmgrpo.rewards.text.ngrams",
    "mmgrpo.rewards.numerals": "mmgrpo.rewards.parsing.numerals",
    "mmgrpo.rewards.ocr": "mmgrpo.rewards.images.ocr",
    "mmgrpo.rewards.ocr_engines": "mmgrpo.rewards.models.ocr_engines",
    "mmgrpo.rewards.parsing": "mmgrpo.rewards.parsing.extraction",
    "mmgrpo.rewards.pixels": "mmgrpo.rewards.images.pixels",
    "mmgrpo.rewards.precision": "mmgrpo.rewards.grounding.precision",
    "mmgrpo.rewards.quantities": "mmgrpo.rewards.text.quantities",
    "mmgrpo.rewards.questions": "mmgrpo.rewards.judges.questions",
    "mmgrpo.rewards.references": "mmgrpo.rewards.parsing.references",
    "mmgrpo.rewards.regions": "mmgrpo.rewards.geometry.regions",
    "mmgrpo.rewards.remote": "mmgrpo.rewards.judges.remote",
    "mmgrpo.rewards.scenes": "mmgrpo.rewards.images.scenes",
    "mmgrpo.rewards.similarity": "mmgrpo.rewards.images.similarity",
    "mmgrpo.rewards.spaces": "mmgrpo.rewards.geometry.frames",
    "mmgrpo.rewards.structure": "mmgrpo.rewards.text.structure",
    "mmgrpo.rewards.textures": "mmgrpo.rewards.images.textures",
    "mmgrpo.rewards.tracks": "mmgrpo.rewards.grounding.tracks",
    "mmgrpo.rewards.video_align": "mmgrpo.rewards.video.video_align",
    "mmgrpo.rewards.video_align_checkpoint": "mmgrpo.rewards.video.video_align_checkpoint",
    "mmgrpo.rewards.vision_language": "mmgrpo.rewards.judges.local",
    "mmgrpo.trainer": "mmgrpo.train.trainer",
    "mmgrpo.wire": "mmgrpo.serving.wire",
}

RENAMED: Mapping[str, str] = {
    "mmgrpo.maths.modulation:known": "detached",
    "mmgrpo.scoring:Scoring": "PendingScores",
}
"""Names in modules, by their former name: what they are called now."""


@final
class _Moved:
    """The last finder that Python asks for a module: of one that has moved it says where it is."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name in MOVED:
            raise ModuleNotFoundError(f"{name} has moved: it is {MOVED[name]} now", name=name)


def announce_moves() -> None:
    """Has imports of modules that have moved, ``python -m`` among them, fail with an error that gives the new name."""
    if _Moved not in sys.meta_path:
        sys.meta_path.append(_Moved)


def renamed(module: str) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of a module of which names have changed: raises AttributeError, which says the new name."""

    def missing(name: str) -> NoReturn:
        now = RENAMED.get(f"{module}:{name}")
        raise AttributeError(
            f"module {module!r} has no attribute {name!r}" + ("" if now is None else f": it is called {now} now")
        )

    return missing


def require_current(module: str, attribute: str) -> None:
    """Raises ConfigError, which says the new name, if a module has moved."""
    if module in MOVED:
        raise ConfigError(f"{module}:{attribute} has moved: it is {MOVED[module]}:{attribute} now")
