"""SAGE (self-hints): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.data.history import History
from tests.configs.method_rounds import ExpectedRounds, assert_rounds, history_of, template_text

# the first prompt fails, hints are generated, and it is solved with the first
ROUNDS = ExpectedRounds(
    rewards=([0, 0, 1, 0], [1], [0, 1]),
    requests=([(0, 2, 1, "hints")], [(0, 4, 2, "first")]),
    trained=([0, 0, 1, 1], [0], [1, 1]),
)


def test_rounds_of_the_method() -> None:
    assert_rounds("sage", ROUNDS)


def test_prompt_has_a_generated_hint() -> None:
    hints = history_of("5", '```json {"level_1": "add", "level_2": "say \\"two\\""}```', rewards=(0.0, None))
    assert template_text("sage", "first", hints).endswith("A hint:\nadd")
    assert template_text("sage", "second", hints).endswith('A hint:\nsay \\"two\\"')
    assert template_text("sage", "third", hints) == "2 + 2?"  # there is no third hint
    assert '{"level_1": ..., "level_2": ..., "level_3": ...}' in template_text("sage", "hints", History())
