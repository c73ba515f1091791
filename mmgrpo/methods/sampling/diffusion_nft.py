"""DiffusionNFT, arXiv:2509.16117.

The forward process is trained with an implicit positive and an implicit negative policy.
"""

from __future__ import annotations

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.terms import TERMS, Loss, term
from mmgrpo.maths.terms.group_losses import optimality
from mmgrpo.maths.terms.view_terms import mean_of
from mmgrpo.values import OLD, Value


def positive_error(strength: float, view: str = OLD) -> Value:
    """``matching_errors(..., strength).positive`` against a view."""
    return Value("positive_error", view, (strength,))


def negative_error(strength: float, view: str = OLD) -> Value:
    """``matching_errors(..., strength).negative`` against a view."""
    return Value("negative_error", view, (strength,))


def _check_diffusion_nft(strength: float, limit: float) -> None:
    if strength <= 0 or limit <= 0:
        raise ConfigError(f"strength and limit must be above 0, got {strength} and {limit}")


@TERMS.register
@term(
    values=lambda strength, view: (positive_error(strength, view), negative_error(strength, view)),
    check=_check_diffusion_nft,
)
def diffusion_nft(decisions: Decisions, *, strength: float = 1.0, limit: float = 5.0, view: str = OLD) -> Loss:
    """Good samples are predicted by an implied better policy, bad ones by an implied worse one.

    L = c sum v (r e+ + (1 - r) e-) / b, r = clip(A / (2 c) + 1 / 2, 0, 1), b = strength, c = limit.
    e+- are those of ``matching_errors``. At the weights of the view its value does not depend on r, and its gradient is
    2 r - 1 times that of the matching loss.

    Units: strength is dimensionless (1; 0.1 with a slow view); limit in advantages.
    Raises: ConfigError for a strength or limit of 0 or less.
    Source: DiffusionNFT, arXiv:2509.16117, and its code. It is used with a divergence ``velocity_mse`` from
        the reference at 1e-4.
    """
    better, worse = positive_error(strength, view), negative_error(strength, view)
    share_BT = optimality(decisions.advantage_BT, limit=limit).where(decisions.mask_BT, 0.0)
    error_BT = share_BT * decisions[better] + (1 - share_BT) * decisions[worse]
    return mean_of("diffusion_nft", decisions, error_BT, factor=limit / strength)
