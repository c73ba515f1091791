"""SSP: the requests, rewards and prompts of a play, by hand."""

from __future__ import annotations

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.history import History
from mmgrpo.maths.strategies import Setting
from mmgrpo.samples import Turn
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Prompt, Sample
from tests.configs.method_steps import config_of
from tests.maths.round_rows import round_of

COLUMNS = {"answer": "7"}
RIGHT, WRONG = "<answer>7</answer>", "<answer>8</answer>"


def wrote(
    text: str, group: int, member: int, prompt_template: str, *after: tuple[int, int], results: int = 0
) -> Sample:
    """A sample with as many results of searches."""
    replies = [Turn(text=f"result {number}") for number in range(results)] + [Turn(done=True)]
    return Sample(
        Prompt("q", columns=COLUMNS),
        group,
        member,
        text=text,
        prompt_template=prompt_template,
        after=after,
        turn_replies=replies,
    )


def test_questions_are_checked_and_solved() -> None:
    """Two questions of one answer: a check of each, then a group of solutions of each."""
    strategy, setting = Algorithm.of(config_of("ssp")).strategy, Setting(step=0, num_prompts=1, group_size=2)
    rounds = [round_of(strategy.ask((), setting), [0, 0], [True] * 2)]
    checks = strategy.ask(rounds, setting)
    assert [(request.prompt_template, request.after, request.trained) for request in checks] == [
        ("checked", ((0, 0),), False),
        ("checked", ((0, 1),), False),
    ]
    rounds.append(round_of(checks, [0, 1], [True] * 2))
    solutions = strategy.ask(rounds, setting)
    assert [(request.prompt_template, request.after, len(request.members)) for request in solutions] == [
        ("solved", ((0, 0),), 2),
        ("solved", ((0, 1),), 2),
    ]
    assert strategy.ask([*rounds, round_of(solutions, [0] * 4, [True] * 4)], setting) == ()


def test_questions_earn_wrong_solutions_if_they_can_be_answered() -> None:
    """One right solution of four; a wrong check; no solution; no check."""
    posed = [wrote("<question>q?</question>", 0, member, "posed") for member in range(4)]
    checked = [
        wrote(RIGHT, 1, 0, "checked", (0, 0)),
        wrote(WRONG, 2, 0, "checked", (0, 1)),
        wrote(RIGHT, 3, 0, "checked", (0, 2)),
    ]
    solved = [
        *[wrote(RIGHT if member == 0 else WRONG, 4, member, "solved", (0, 0)) for member in range(4)],
        *[wrote(WRONG, 5, member, "solved", (0, 1)) for member in range(2)],
        wrote(RIGHT, 6, 0, "solved", (0, 3)),
    ]
    samples = [*posed, *checked, *solved]
    values = {reward.name: list(reward.function(samples)) for reward in build_rewards(config_of("ssp").rewards)}
    assert values["posed"] == [0.75, 0.0, 0.0, 0.0, *[None] * 10]
    assert values["solved"] == [*[None] * 7, 1.0, 0.0, 0.0, 0.0, None, None, None]


def test_prompt_of_a_check_has_the_question_and_the_results() -> None:
    template = Algorithm.of(config_of("ssp")).prompt_templates["checked"]
    sample = wrote("It is 7. <question> What is 3 + 4? </question>", 0, 0, "posed", results=2)
    prompt = template(Prompt("q", columns=COLUMNS), 0, History(samples=[sample]))
    assert prompt is not None
    assert "result 0\n\nresult 1\n\nQuestion: What is 3 + 4?" in prompt.text
    assert "7" not in prompt.text
    few = wrote("<question>What is 3 + 4?</question>", 0, 0, "posed", results=1)
    no_question = wrote("What is 3 + 4?", 0, 0, "posed", results=2)
    for other in (few, no_question):
        assert template(Prompt("q", columns=COLUMNS), 0, History(samples=[other])) is None


def test_prompt_of_a_solution_has_the_question_alone() -> None:
    template = Algorithm.of(config_of("ssp")).prompt_templates["solved"]
    sample = wrote("It is 7. <question>What is 3 + 4?</question>", 0, 0, "posed")
    prompt = template(Prompt("q", columns=COLUMNS), 0, History(samples=[sample]))
    assert prompt is not None
    assert prompt.text.endswith("Question: What is 3 + 4?")
    assert "7" not in prompt.text
