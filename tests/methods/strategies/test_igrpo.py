"""iGRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import ExpectedRounds, assert_rounds, history_of, template_text

# of each prompt two with the best draft, which alone train
ROUNDS = ExpectedRounds(
    rewards=([0, 1, 0, 0], [0, 1, 0, 1]),
    requests=([(0, 2, 2, "draft"), (1, 2, 2, "draft")],),
    trained=([0, 0, 0, 0], [1, 1, 1, 1]),
)


def test_rounds_of_the_method() -> None:
    assert_rounds("igrpo", ROUNDS)


def test_prompt_has_the_best_draft() -> None:
    drafts = history_of("5", "4", "3", rewards=(0.0, 1.0, None))
    assert "solution:\n4\n" in template_text("igrpo", "draft", drafts)
