"""Estimators by name: how the advantage of a sample becomes the advantage of each of its decisions."""

from __future__ import annotations

from collections.abc import Callable

from mmgrpo.maths.chain_credit import imitated
from mmgrpo.maths.feedback import Estimator as Estimator
from mmgrpo.maths.forest_credit import along_segments, prune_depths, prune_width, temporal_difference
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.scoped_credit import process_returns, scoped, segment_differences
from mmgrpo.maths.value_credit import column_weight, drawn_baseline, gae, log_ratio, whitened
from mmgrpo.maths.view_credit import within_divergence

ESTIMATORS: Registry[Callable[..., Estimator]] = Registry(
    {
        "temporal_difference": temporal_difference,
        "along_segments": along_segments,
        "prune_depths": prune_depths,
        "prune_width": prune_width,
        "scoped": scoped,
        "process_returns": process_returns,
        "segment_differences": segment_differences,
        "gae": gae,
        "whitened": whitened,
        "log_ratio": log_ratio,
        "within_divergence": within_divergence,
        "column_weight": column_weight,
        "drawn_baseline": drawn_baseline,
        "imitated": imitated,
    }
)
"""Estimators by the name that a method's configuration uses; called with their numbers, applied in order."""
