"""SimpleTIR: the samples that train, by hand."""

from __future__ import annotations

import torch

from mmgrpo.methods.environments.simpletir import void_turns
from mmgrpo.types import Prompt, Sample
from tests.configs.method_rows import A_TWO_6
from tests.configs.method_steps import Step, advantages_of, config_of

PROGRAM = "Let me compute.\n```py\nprint(2)\n```\n"


def conversation(*turns: str) -> Sample:
    """A sample of these turns."""
    return Sample(Prompt("q"), 0, 0, text="".join(turns), turn_texts=turns, turn_ends=tuple(range(1, len(turns) + 1)))


def test_turn_without_a_program_and_an_answer_is_void() -> None:
    samples = [
        conversation(PROGRAM, r"So \boxed{2}"),
        conversation(PROGRAM, "I do not know."),
        conversation("Hm.", "```py\nprint(2)\n", r"\boxed{2}"),  # the block is not closed
        Sample(Prompt("q"), 0, 0, text="no conversation"),
    ]
    assert void_turns(samples) == [0.0, 1.0, 2.0, None]


def test_samples_with_void_turns_count_in_the_advantages_and_do_not_train() -> None:
    """Rewards 1 and 0 in each of two groups; of the first group the wrong sample is void."""
    rows = Step(reward=(1.0, 0.0, 1.0, 0.0), groups=(0, 0, 1, 1), named_rewards={"void": (0.0, 1.0, 0.0, float("nan"))})
    result = advantages_of(config_of("simpletir"), rows)
    assert result.mask_BT.any(1).tolist() == [True, False, True, True]
    expected = [[A_TWO_6] * 2, [-A_TWO_6] * 2] * 2
    torch.testing.assert_close(result.advantage_BT, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)
