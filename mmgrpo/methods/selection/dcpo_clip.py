"""DCPO (dynamic bounds), arXiv:2509.02333.

The clip bounds are wider for decisions that were unlikely under the behavior policy.
"""

from __future__ import annotations

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import MODULATIONS, OLD_LOGPROB, JobValues, Modulated, detached, modulation


@MODULATIONS.register
@modulation(bounds=True)
def by_old_probability(
    decisions: Decisions, job_values: JobValues, *, low: float = 0.16, high: float = 0.2, most: float = 10.0
) -> Modulated:
    """Bounds that widen for decisions with a low probability under the behavior policy.

    The ratio is clipped to (1 + sqrt(max(1 - 4 low / q, 0))) / 2 and min((1 + sqrt(1 + 4 high / q)) / 2, most), q the
    old probability.

    Units: low and high are in probability; most is a ratio.
    Source: DCPO, arXiv:2509.02333, and its code (lime-RL/DCPO, ``core_algos.py``). For decisions that have a
        probability; that of a denoising step is a density.
    """
    del job_values
    probability_BT = detached(decisions, OLD_LOGPROB).where(decisions.mask_BT, 0.0).double().exp()
    floor_BT = (1 + (1 - 4 * low / probability_BT).clamp(min=0).sqrt()) / 2
    ceiling_BT = ((1 + (1 + 4 * high / probability_BT).sqrt()) / 2).clamp(max=most)
    return Modulated(low_BT=1 - floor_BT, high_BT=ceiling_BT - 1)
