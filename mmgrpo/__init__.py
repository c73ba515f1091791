"""mmgrpo: GRPO for anything that generates."""

from mmgrpo.types import Evaluation, Noise, Plan, Prompt, Rollout, Sample, Scores

__version__ = "0.1.0"

__all__ = ["Evaluation", "Noise", "Plan", "Prompt", "Rollout", "Sample", "Scores", "__version__"]
