"""Critique-GRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import ExpectedRounds, assert_rounds, history_of, template_text
from tests.configs.method_rows import A_THREE, REFINED
from tests.configs.method_steps import assert_loss


def test_loss_of_the_method() -> None:
    """A mean over three samples of 6,144 tokens at most."""
    assert_loss("critique-grpo", REFINED, A_THREE * 0.5 / 3 / 6144)


# of each prompt the better refinement, of equal ones the first
ROUNDS = ExpectedRounds(
    rewards=([0, 1, 0, 0], [0, 1, 0, 0]),
    requests=([(0, 2, 2, "refine"), (1, 2, 2, "refine")],),
    trained=([1, 1, 1, 1], [0, 1, 1, 0]),
)


def test_rounds_of_the_method() -> None:
    assert_rounds("critique-grpo", ROUNDS)


def test_prompt_has_a_draft_and_its_critique() -> None:
    drafts = history_of("5", "4", "3", rewards=(0.0, 1.0, None))
    assert "solution:\n3\n" in template_text("critique-grpo", "refine", drafts, member=5)  # 5 modulo 3
    assert "That is wrong; the answer is 4." in template_text("critique-grpo", "refine", drafts, member=3)
    assert "That is right; the answer is 4." in template_text("critique-grpo", "refine", drafts, member=4)
