"""Estimators by name: how the advantage of a sample becomes the advantage of each of its decisions."""

from __future__ import annotations

from collections.abc import Callable

from mmgrpo.maths.chain_credit import along_chain, imitated, likely_answers
from mmgrpo.maths.consensus_credit import divergent_places, global_consistency, uncertain_groups
from mmgrpo.maths.entropy_credit import entropy_rewards, entropy_weights, inverse_entropy, zero_variance_entropy
from mmgrpo.maths.exit_credit import over_budgets
from mmgrpo.maths.feedback import Estimator as Estimator
from mmgrpo.maths.filters import among_most_efficient
from mmgrpo.maths.forest_credit import (
    along_segments,
    by_depth,
    by_level,
    prune_depths,
    prune_width,
    shared_once,
    siblings,
    temporal_difference,
    trunk_and_exits,
)
from mmgrpo.maths.internal_credit import anchors, rank_bonus
from mmgrpo.maths.length_credit import short_where_solved, shorter_branches
from mmgrpo.maths.likelihood_credit import confident_mistakes, late_decisions, perplexity_weight, self_judged
from mmgrpo.maths.process_credit import concise_failures, consistent_members
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.scoped_credit import (
    clipped_differences,
    process_returns,
    process_supervision,
    ranks,
    scoped,
    segment_differences,
)
from mmgrpo.maths.shared_segments import sure_segments
from mmgrpo.maths.token_credit import both_ends, conflict_tokens, prefix_count, prefix_tree
from mmgrpo.maths.turn_credit import anchor_states
from mmgrpo.maths.value_credit import (
    answer_while_needed,
    column_baseline,
    column_margin,
    column_weight,
    drawn_baseline,
    expected_return,
    gae,
    log_ratio,
    read_count_as,
    remembered_baseline,
    whitened,
    whitened_by_sign,
)
from mmgrpo.maths.view_credit import (
    bounded_uncertainty,
    divergence_to_come,
    excess_likelihood,
    outside_view,
    returns_in_view,
    within_divergence,
)

ESTIMATORS: Registry[Callable[..., Estimator]] = Registry(
    {
        "inverse_entropy": inverse_entropy,
        "zero_variance_entropy": zero_variance_entropy,
        "rank_bonus": rank_bonus,
        "anchors": anchors,
        "entropy_weights": entropy_weights,
        "entropy_rewards": entropy_rewards,
        "short_where_solved": short_where_solved,
        "shorter_branches": shorter_branches,
        "uncertain_groups": uncertain_groups,
        "global_consistency": global_consistency,
        "divergent_places": divergent_places,
        "perplexity_weight": perplexity_weight,
        "late_decisions": late_decisions,
        "confident_mistakes": confident_mistakes,
        "self_judged": self_judged,
        "consistent_members": consistent_members,
        "concise_failures": concise_failures,
        "sure_segments": sure_segments,
        "prefix_tree": prefix_tree,
        "prefix_count": prefix_count,
        "conflict_tokens": conflict_tokens,
        "both_ends": both_ends,
        "by_depth": by_depth,
        "by_level": by_level,
        "siblings": siblings,
        "temporal_difference": temporal_difference,
        "along_segments": along_segments,
        "trunk_and_exits": trunk_and_exits,
        "over_budgets": over_budgets,
        "shared_once": shared_once,
        "prune_depths": prune_depths,
        "prune_width": prune_width,
        "scoped": scoped,
        "ranks": ranks,
        "process_supervision": process_supervision,
        "process_returns": process_returns,
        "clipped_differences": clipped_differences,
        "segment_differences": segment_differences,
        "anchor_states": anchor_states,
        "gae": gae,
        "expected_return": expected_return,
        "whitened": whitened,
        "whitened_by_sign": whitened_by_sign,
        "log_ratio": log_ratio,
        "excess_likelihood": excess_likelihood,
        "outside_view": outside_view,
        "returns_in_view": returns_in_view,
        "divergence_to_come": divergence_to_come,
        "within_divergence": within_divergence,
        "bounded_uncertainty": bounded_uncertainty,
        "column_margin": column_margin,
        "column_baseline": column_baseline,
        "column_weight": column_weight,
        "drawn_baseline": drawn_baseline,
        "read_count_as": read_count_as,
        "answer_while_needed": answer_while_needed,
        "remembered_baseline": remembered_baseline,
        "among_most_efficient": among_most_efficient,
        "along_chain": along_chain,
        "imitated": imitated,
        "likely_answers": likely_answers,
    }
)
"""Estimators by the name that a method's configuration uses; called with their numbers, applied in order."""
