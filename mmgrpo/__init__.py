"""mmgrpo: GRPO for anything that generates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import exports

if TYPE_CHECKING:
    from mmgrpo.config import RunConfig
    from mmgrpo.config.loading import load_config
    from mmgrpo.train.trainer import Trainer
    from mmgrpo.types import Evaluation, Example, Noise, Plan, Prompt, Rollout, Sample, Scores, SupervisedLoss

__version__ = "0.1.0"

__all__ = [
    "Evaluation",
    "Example",
    "Noise",
    "Plan",
    "Prompt",
    "Rollout",
    "RunConfig",
    "Sample",
    "Scores",
    "SupervisedLoss",
    "Trainer",
    "__version__",
    "load_config",
]

__getattr__ = exports(
    __name__,
    {"Trainer": "mmgrpo.train.trainer", "load_config": "mmgrpo.config.loading", "RunConfig": "mmgrpo.config"}
    | dict.fromkeys(
        ("Evaluation", "Example", "Noise", "Plan", "Prompt", "Rollout", "Sample", "Scores", "SupervisedLoss"),
        "mmgrpo.types",
    ),
)
