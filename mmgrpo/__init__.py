"""mmgrpo: GRPO for anything that generates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmgrpo.types import Evaluation, Example, Noise, Plan, Prompt, Rollout, Sample, Scores

if TYPE_CHECKING:
    from mmgrpo.config import RunConfig
    from mmgrpo.loading import load_config
    from mmgrpo.trainer import Trainer

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
    "Trainer",
    "__version__",
    "load_config",
]

_LAZY = {"Trainer": "mmgrpo.trainer", "load_config": "mmgrpo.loading", "RunConfig": "mmgrpo.config"}


def __getattr__(name: str) -> Any:
    """Imports what pulls in the engine only when it is asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'mmgrpo' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
