"""mmgrpo: GRPO for anything that generates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.folders import TOP
from mmgrpo.system.import_notices import hide_import_notices
from mmgrpo.system.lazy import exports

if TYPE_CHECKING:
    from mmgrpo.algorithm import Algorithm
    from mmgrpo.config import RunConfig
    from mmgrpo.config.loading import load_config
    from mmgrpo.data.prompt_loading import load_prompts_of
    from mmgrpo.distributed.job import Job
    from mmgrpo.loop import Step
    from mmgrpo.policy import Policy
    from mmgrpo.scoring import Scorer
    from mmgrpo.training.auxiliary import Auxiliaries
    from mmgrpo.training.build import (
        build_policy,
        build_rewards,
        build_views,
        optimizer_of,
        plan_at,
    )
    from mmgrpo.training.components import Components
    from mmgrpo.training.compute_advantages import combine_rewards, compute_advantages
    from mmgrpo.training.mixed import MixedTrainer
    from mmgrpo.training.prompt_stats import read_prompt_stats, step_prompt_stats, update_prompt_stats
    from mmgrpo.training.rollout_rounds import collect_rollouts
    from mmgrpo.training.score_rollouts import score_rollouts
    from mmgrpo.training.supervision import Warmup
    from mmgrpo.training.trainer import Trainer
    from mmgrpo.training.update_policy import update_policy
    from mmgrpo.types import Evaluation, Example, Noise, Plan, Prompt, Rollout, Sample, Scores, SupervisedLoss

if str(TOP) not in __path__:  # a checkout
    __path__.append(str(TOP))

hide_import_notices()

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
    "Step": "mmgrpo.loop",
    "Policy": "mmgrpo.policy",
    "Components": "mmgrpo.training.components",
    "Scorer": "mmgrpo.scoring",
    "Warmup": "mmgrpo.training.supervision",
    "Algorithm": "mmgrpo.algorithm",
    **dict.fromkeys(
        ("build_policy", "build_rewards", "optimizer_of", "plan_at"),
        "mmgrpo.training.build",
    ),
    "build_views": "mmgrpo.training.build",
    "compute_advantages": "mmgrpo.training.compute_advantages",
    "collect_rollouts": "mmgrpo.training.rollout_rounds",
    "score_rollouts": "mmgrpo.training.score_rollouts",
    "update_policy": "mmgrpo.training.update_policy",
    "load_prompts_of": "mmgrpo.data.prompt_loading",
    "update_prompt_stats": "mmgrpo.training.prompt_stats",
    "read_prompt_stats": "mmgrpo.training.prompt_stats",
    "step_prompt_stats": "mmgrpo.training.prompt_stats",
    "combine_rewards": "mmgrpo.training.compute_advantages",
}
"""Where each public name is defined; it is imported when it is first used."""

__all__ = [
    "Algorithm",
    "Auxiliaries",
    "Components",
    "Evaluation",
    "Example",
    "Job",
    "MixedTrainer",
    "Noise",
    "Plan",
    "Policy",
    "Prompt",
    "Rollout",
    "RunConfig",
    "Sample",
    "Scorer",
    "Scores",
    "Step",
    "SupervisedLoss",
    "Trainer",
    "Warmup",
    "__version__",
    "build_policy",
    "build_rewards",
    "build_views",
    "collect_rollouts",
    "combine_rewards",
    "compute_advantages",
    "load_config",
    "load_prompts_of",
    "optimizer_of",
    "plan_at",
    "read_prompt_stats",
    "score_rollouts",
    "step_prompt_stats",
    "update_policy",
    "update_prompt_stats",
]

__getattr__ = exports(__name__, HOMES)
