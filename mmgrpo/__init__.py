"""mmgrpo: GRPO for anything that generates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.folders import TOP
from mmgrpo.system.lazy import exports

if TYPE_CHECKING:
    from mmgrpo.algorithm import Algorithm
    from mmgrpo.config import RunConfig
    from mmgrpo.config.loading import load_config
    from mmgrpo.data.prompts import load_prompts_of
    from mmgrpo.distributed.job import Job
    from mmgrpo.scoring import Scorer
    from mmgrpo.training.auxiliary import Auxiliaries
    from mmgrpo.training.build import (
        build_policy,
        build_rewards,
        optimizer_of,
        plan_at,
    )
    from mmgrpo.training.build_views import build_views
    from mmgrpo.training.credit import estimate, valued
    from mmgrpo.training.gather import gather
    from mmgrpo.training.judge import judge
    from mmgrpo.training.learn import learn
    from mmgrpo.training.memory import remember, remembered, step_facts
    from mmgrpo.training.mixed import MixedTrainer
    from mmgrpo.training.trainer import Trainer
    from mmgrpo.training.warmup import Warmup
    from mmgrpo.types import Evaluation, Example, Noise, Plan, Prompt, Rollout, Sample, Scores, SupervisedLoss

if str(TOP) not in __path__:  # a checkout
    __path__.append(str(TOP))

__version__ = "0.1.0"

HOMES = {
    "Trainer": "mmgrpo.training.trainer",
    "MixedTrainer": "mmgrpo.training.mixed",
    "RunConfig": "mmgrpo.config",
    "load_config": "mmgrpo.config.loading",
    **dict.fromkeys(
        ("Evaluation", "Example", "Noise", "Plan", "Prompt", "Rollout", "Sample", "Scores", "SupervisedLoss"),
        "mmgrpo.types",
    ),
    "Auxiliaries": "mmgrpo.training.auxiliary",
    "Job": "mmgrpo.distributed.job",
    "Scorer": "mmgrpo.scoring",
    "Warmup": "mmgrpo.training.warmup",
    "Algorithm": "mmgrpo.algorithm",
    **dict.fromkeys(
        ("build_policy", "build_rewards", "optimizer_of", "plan_at"),
        "mmgrpo.training.build",
    ),
    "build_views": "mmgrpo.training.build_views",
    "estimate": "mmgrpo.training.credit",
    "gather": "mmgrpo.training.gather",
    "judge": "mmgrpo.training.judge",
    "learn": "mmgrpo.training.learn",
    "load_prompts_of": "mmgrpo.data.prompts",
    "remember": "mmgrpo.training.memory",
    "remembered": "mmgrpo.training.memory",
    "step_facts": "mmgrpo.training.memory",
    "valued": "mmgrpo.training.credit",
}
"""Where each public name is defined; it is imported when it is first used."""

__all__ = [
    "Algorithm",
    "Auxiliaries",
    "Evaluation",
    "Example",
    "Job",
    "MixedTrainer",
    "Noise",
    "Plan",
    "Prompt",
    "Rollout",
    "RunConfig",
    "Sample",
    "Scorer",
    "Scores",
    "SupervisedLoss",
    "Trainer",
    "Warmup",
    "__version__",
    "build_policy",
    "build_rewards",
    "build_views",
    "estimate",
    "gather",
    "judge",
    "learn",
    "load_config",
    "load_prompts_of",
    "optimizer_of",
    "plan_at",
    "remember",
    "remembered",
    "step_facts",
    "valued",
]

__getattr__ = exports(__name__, HOMES)
