"""MEML-GRPO: numbers worked out by hand."""

from __future__ import annotations

import pytest

from mmgrpo.data.history import History
from mmgrpo.errors import ConfigError
from mmgrpo.methods.off_policy.meml_grpo import systems, weakest_system
from mmgrpo.types import Prompt, Sample
from mmgrpo.values import mask_of_view, of_view
from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss

# the first of three parts is all right, the second all wrong, half of the third right: its ratios 2, held at 1.2,
# and 1. The first one's answers have -1 and, under the second's text, -1.5 and -3: 0.5 and 2
LOSS = (
    Step(
        reward=(1.0, 1.0, 0.0, 0.0, *ONE_OF_TWO),
        log_ratio=((0.0,), (0.0,), (0.0,), (0.0,), (UP,), (0.0,)),
        values={
            of_view("weakest"): [[-1.5], [-3.0], [0.0], [0.0], [0.0], [0.0]],
            mask_of_view("weakest"): [[1.0], [1.0], [0.0], [0.0], [0.0], [0.0]],
        },
    ),
    (2.5 - 0.2 * A_TWO_6) / 6,
)


def test_loss_of_the_method() -> None:
    assert_loss("meml-grpo", *LOSS)


def test_missing_system_texts_raise() -> None:
    weakest_system(texts=["a", "b"])
    with pytest.raises(ConfigError, match="two at least"):
        weakest_system(texts=["a"])
    with pytest.raises(ConfigError, match="at least one text"):
        systems(texts=[])


def test_right_answers_of_the_best_part_have_the_prompt_of_the_worst() -> None:
    template = weakest_system(texts=["first", "second"])
    samples = [
        Sample(prompt=Prompt("2 + 2"), group=0, member=member, prompt_template="ab"[member // 2]) for member in range(4)
    ]
    history = History(samples=samples, rewards=[1.0, 0.0, None, 0.0])
    view = template(Prompt("2 + 2"), 0, history)
    assert view is not None
    assert view.messages == [{"role": "system", "content": "second"}, {"role": "user", "content": "2 + 2"}]
    assert template(Prompt("2 + 2"), 1, history) is None  # a wrong answer
    assert template(Prompt("2 + 2"), 2, history) is None  # of the other part
    assert template(Prompt("2 + 2"), 0, History()) is None
    assert template(Prompt("2 + 2"), 0, History(samples=samples, rewards=[1.0, 0.0, 0.0, 1.0])) is None
    with pytest.raises(ConfigError, match="has 3 texts, but the group was sampled in 2"):
        weakest_system(texts=["first", "second", "third"])(Prompt("2 + 2"), 0, history)
