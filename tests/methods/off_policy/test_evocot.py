"""EvoCoT: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.algorithm import Algorithm, schedules_of
from mmgrpo.data.history import History
from mmgrpo.memory import Memory
from mmgrpo.types import Prompt
from tests.configs.method_rounds import assert_prompt_templates
from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit, config_of

PAIR = Step(reward=ONE_OF_TWO, lengths=[1, 1])
CREDIT = (PAIR, [[A_TWO], [-A_TWO]])


def test_advantages_of_the_method() -> None:
    assert_credit("evocot", *CREDIT)


def test_contexts_of_a_group() -> None:
    assert_prompt_templates("evocot", ["thought"])


def test_prefix_of_the_thought_shortens_over_the_run() -> None:
    prompt = Prompt("why", columns={"thought": "one\n\ntwo\n\nthree\n\nfour"})
    prefixes = []
    for step in (0, 50, 75, 100):
        templated = Algorithm.of(schedules_of(config_of("evocot")).at(step, Memory()).config).prompt_templates[
            "thought"
        ](prompt, 0, History())
        assert templated is not None
        prefixes.append(templated.prefix)
    assert prefixes == ["one\n\ntwo\n\nthree\n\nfour\n\n", "one\n\ntwo\n\n", "one\n\n", None]
