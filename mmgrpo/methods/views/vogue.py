"""VOGUE (visual uncertainty), arXiv:2510.01444.

Decisions that change under noised images, and uncertain ones, get a bounded bonus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.data.corruption import IMAGE_TEMPLATES, corrupt_images
from mmgrpo.data.history import NOTHING, History, prompt_template
from mmgrpo.data.prompt_templates import PROMPT_TEMPLATES
from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.terms import ratio_of
from mmgrpo.system.lazy import numpy as np
from mmgrpo.system.lazy import torch
from mmgrpo.types import Prompt
from mmgrpo.values import ENTROPY, of_view

if TYPE_CHECKING:
    from torch import Tensor


def _check_bounded_uncertainty(bound: float, entropy_bound: float, weight: float, entropy: float) -> None:
    if min(bound, entropy_bound) <= 0 or min(weight, entropy) < 0:
        raise ConfigError("bounded_uncertainty needs bounds above 0 and weights of at least 0")


@ESTIMATORS.register
@estimator(values=lambda view: (of_view(view), ENTROPY), check=_check_bounded_uncertainty)
def bounded_uncertainty(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    view: str,
    weight: float = 1.0,
    bound: float = 2.0,
    entropy: float = 0.4,
    entropy_bound: float = 2.0,
) -> Tensor:
    """A bonus for decisions that are unlikely under the view, and for uncertain ones, each within a share of |A|.

    A_t <- A_t + min(|A_t| / bound, weight u_t) + min(|A_t| / entropy_bound, entropy H_t), H_t the decision's entropy.
    u_t = (r_t - 1) log r_t / 2, r_t = exp(logprob_view - old_logprob): an unbiased estimate of half the sum of the two
    divergences between the view and the behavior policy, at least 0, and 0 for a row sampled with the prompt of the
    view.

    Units: weight and entropy are advantage per nat; the bounds are dimensionless.
    Raises: ConfigError for bounds that are not above 0, or weights below 0.
    Source: VOGUE, arXiv:2510.01444, with divergences of the full distributions.
    """
    log_ratio_BT = (feedback[of_view(view)] - feedback.old_logprob_BT).where(feedback.view_mask(view), 0.0)
    difference_BT = (0.5 * (ratio_of(log_ratio_BT) - 1) * log_ratio_BT).to(advantage_BT)
    size_BT, unsure_BT = advantage_BT.abs(), feedback[ENTROPY].to(advantage_BT)
    bonus_BT = torch.minimum(size_BT / bound, weight * difference_BT)
    return advantage_BT + bonus_BT + torch.minimum(size_BT / entropy_bound, entropy * unsure_BT)


@PROMPT_TEMPLATES.register
@prompt_template()
def bare(prompt: Prompt, member: int, history: History = NOTHING) -> Prompt:
    """The prompt of the data row itself, for a sample with any other prompt; useful only in a view."""
    del member, history
    return prompt


def _check_noised_image(share: float, chance: float) -> None:
    if not 0 <= share <= 1 or not 0 <= chance <= 1:
        raise ConfigError(f"the share of noise and its probability must be from 0 to 1, got {share} and {chance}")


@IMAGE_TEMPLATES.register
@prompt_template(check=_check_noised_image)
def noised_image(
    prompt: Prompt,
    member: int,
    history: History = NOTHING,
    *,
    share: float,
    per_member: bool = True,
    chance: float = 1.0,
) -> Prompt | None:
    """The prompt with Gaussian noise on its images; without images there is no view.

    x <- sqrt(1 - share) x + sqrt(share) e, pixels x from -1 to 1, clamped to that. A member, or without ``per_member``
    a group, has the noise with the probability ``chance``, and else the unchanged prompt.

    Units: share of the variance that is noise and chance, 0 to 1.   Raises: ConfigError for others.
    Source: the forward process of DDPM, arXiv:2006.11239, eq. 4; the chance that of VOGUE, arXiv:2510.01444.
    """
    if chance < 1:
        keys = (member,) if per_member else ()
        if np.random.default_rng(derive_seed(history.seed, *keys)).random() >= chance:
            return prompt

    def noised(pixels: np.ndarray, random: np.random.Generator) -> np.ndarray:
        signal = pixels / 127.5 - 1
        mixed = np.sqrt(1 - share) * signal + np.sqrt(share) * random.standard_normal(pixels.shape)
        return ((mixed.clip(-1, 1) + 1) * 127.5).round().astype(np.uint8)

    return corrupt_images(prompt, member, history, spoil=noised, per_member=per_member)
