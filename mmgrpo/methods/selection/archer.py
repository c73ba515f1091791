"""Archer, arXiv:2507.15778.

Low-confidence decisions get wide clip bounds and no divergence, all others narrow bounds.
"""

from __future__ import annotations

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import (
    MODULATIONS,
    JobValues,
    Modulated,
    above_row_quantile,
    detached,
    modulation,
    require_quantile,
)
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY


@MODULATIONS.register
@modulation(values=(ENTROPY,), bounds=True, check=require_quantile)
def by_entropy_quantile(
    decisions: Decisions,
    job_values: JobValues,
    *,
    quantile: float = 0.8,
    low: float = 0.2,
    high: float = 0.2,
    divergence: float = 1.0,
    above_low: float = 0.5,
    above_high: float = 0.5,
    above_divergence: float = 0.0,
) -> Modulated:
    """Wide bounds and no divergence for the decisions of a sample that are least sure, narrow ones for the others.

    low = above_low where H > quantile(H of the sample's kept decisions), else low; likewise high and the divergence.
    The quantile is interpolated linearly.

    Units: bounds as the surrogate takes them; divergences are factors of kl_beta.
    Raises: ConfigError for a quantile outside 0 .. 1.
    Source: Archer, arXiv:2507.15778, and its code (wizard-III/ArcherCodeR, ``dp_actor.py``): 0.8, 0.2 / 0.2 with k3 at
        0.001, and 0.5 / 0.5 without.
    """
    del job_values
    entropy_BT = detached(decisions, ENTROPY)
    above_BT = above_row_quantile(entropy_BT, decisions.mask_BT, quantile)
    low_BT, high_BT, divergence_BT = (
        torch.full_like(entropy_BT, below, dtype=torch.float64).masked_fill(above_BT, above)
        for below, above in ((low, above_low), (high, above_high), (divergence, above_divergence))
    )
    return Modulated(low_BT=low_BT, high_BT=high_BT, divergence_BT=divergence_BT.to(entropy_BT))
