"""RGR-GRPO (reward and guidance through rubrics): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import ExpectedRounds, assert_rounds, history_of, template_text
from tests.configs.method_rows import A_THREE, REFINED
from tests.configs.method_steps import assert_loss


def test_loss_of_the_method() -> None:
    """A mean over three samples of 4,096 tokens at most."""
    assert_loss("rgr-grpo", REFINED, A_THREE * 0.5 / 3 / 4096)


# of the first prompt one is right, so that one more is sampled; of the second the best draft is refined
ROUNDS = ExpectedRounds(
    rewards=([0, 1, 0.2, 0.5], [1, 0]),
    requests=([(0, 2, 1, None), (1, 2, 1, "refine")],),
    trained=([1, 1, 1, 1], [1, 1]),
)


def test_rounds_of_the_method() -> None:
    assert_rounds("rgr-grpo", ROUNDS)


def test_prompt_has_the_best_draft_and_the_criteria() -> None:
    drafts = history_of("5", "4", "3", rewards=(0.0, 1.0, None))
    text = template_text("rgr-grpo", "refine", drafts, member=3, criteria="adds both")
    assert "solution:\n4\n\nIt does not meet all of this:\nadds both\n" in text
