"""The functions for which a property does not hold by design, each with its reason.

A test checks that each of them still fails, so that nothing is exempt for longer than it has to be.
"""

from __future__ import annotations

from collections.abc import Mapping

PARTS = "members are of a part by their number"
BATCH = "the scale is measured over the batch"
RANGE = "rewards outside a range are an error"

OTHERS = "it is for samples of other policies"
TIES = "members that tie go by their order"

EXEMPT: Mapping[str, Mapping[str, str]] = {
    "order_of_rows_does_not_matter": {
        "estimators.along_chain": "a row follows the one that it was sampled after",
        "estimators.among_most_efficient": TIES,
        "estimators.prune_width": TIES,
        "estimators.trunk_and_exits": "exits that leave the trunk at one decision go by their order",
        "filters.balanced_outcomes": "the first members of each outcome train",
        "filters.best_and_worst": TIES,
        "filters.each_decision_once": "of the rows that share a decision the first trains it",
        "filters.most_efficient": TIES,
        "filters.most_varied": TIES,
    },
    "numbers_of_groups_do_not_matter": {
        "estimators.short_where_solved": "groups of one success rate go by their numbers",
    },
    "large_rewards_give_numbers": {"scale.beta": RANGE, "scale.mapo": RANGE},
    "order_of_prompts_does_not_matter": {"scale.risk": "prompts that follow each other are bundled"},
    "order_of_members_does_not_matter": {
        "scale.group_and_part": PARTS,
        "scale.part": PARTS,
        "scale.part_baseline": PARTS,
        "scale.staged": PARTS,
    },
    "members_that_are_missing_do_not_matter": {
        "scale.group_and_part": PARTS,
        "scale.part": PARTS,
        "scale.part_baseline": PARTS,
        "scale.staged": PARTS,
    },
    "other_groups_do_not_matter": {
        "scale.batch": BATCH,
        "scale.beta": BATCH,
        "scale.risk": "prompts that follow each other are bundled",
        "combining.gdpo": BATCH,
    },
    "far_policies_give_numbers": {
        "terms.kl_hinge": "the square of exp of 64 nats is no float32: the penalty is meant to have no end",
    },
    "surrogate_at_ratio_1_is_the_policy_gradient": {
        "surrogate.mixture": OTHERS,
        "surrogate.nft": "its weights are those of a likelihood, by the success rate of the group",
        "surrogate.shaped": OTHERS,
        "surrogate.shaped_probability": OTHERS,
    },
    "flagged_decisions_have_no_gradient": {
        "surrogate.cispo": "every decision keeps a gradient, and flags mark where its weight is held",
        "surrogate.gppo": "every decision keeps a gradient, and flags mark where its ratio is held",
    },
    "controller_rests_at_its_target": {"controllers.either": "it has two numbers, and no target"},
    "member_numbers_are_unique": {
        "strategy.two_stage_scouts": "the exact member has the noise of the scout of its number",
    },
}
"""Reasons by property and function, as ``KIND.NAME`` of ``tests/properties/registered.py``."""
