"""CoMAS: the requests, rewards and prompts of two rounds, by hand."""

from __future__ import annotations

import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.history import History
from mmgrpo.maths.strategies import Setting
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Prompt, Sample
from tests.configs.method_steps import Step, advantages_of, config_of
from tests.maths.round_rows import round_of


def wrote(text: str, group: int, member: int, prompt_template: str | None = None, *after: tuple[int, int]) -> Sample:
    return Sample(Prompt("q"), group, member, text=text, prompt_template=prompt_template, after=after)


def test_two_rounds_of_solutions_evaluations_and_scores() -> None:
    strategy, setting = Algorithm.of(config_of("comas")).strategy, Setting(step=0, num_prompts=1, group_size=4)
    rounds = [round_of(strategy.ask((), setting), [None] * 4)]
    while requests := strategy.ask(rounds, setting):
        rounds.append(round_of(requests, [0.0] * sum(len(request.members) for request in requests)))
    of_template = {round_.requests[0].prompt_template: list(round_.requests) for round_ in rounds}
    assert list(of_template) == [None, "evaluated", "scored", "discussed", "evaluated_again", "scored_again"]
    assert [request.after for request in of_template["evaluated"]] == [((0, member),) for member in range(4)]
    assert [request.after for request in of_template["scored"]] == [((0, member), (1, member)) for member in range(4)]
    (discussed,) = of_template["discussed"]
    assert (discussed.members, discussed.after) == ((0, 1, 2, 3), ((0, 0), (1, 0), (0, 1), (1, 1)))
    second = of_template["scored_again"]
    assert [request.after for request in second] == [
        ((discussed.prompt, member), (of_template["evaluated_again"][0].prompt, member)) for member in range(4)
    ]
    assert all(request.trained for round_ in rounds for request in round_.requests)


def test_solution_and_evaluation_have_opposite_rewards() -> None:
    """Scores 3, 2 and 1, none, and a 4; the last of several scores counts."""
    texts = (
        "fine <score>1</score> no: <score>3</score>",
        "<score> 2 </score>",
        "<score>1</score>",
        "3",
        "<score>4</score>",
    )
    solutions = [wrote("s", 0, member) for member in range(6)]
    evaluations = [wrote("e", 1, member, "evaluated", (0, member)) for member in range(5)]
    scores = [wrote(text, 2, member, "scored", (0, member), (1, member)) for member, text in enumerate(texts)]
    (reward,) = build_rewards(config_of("comas").rewards)
    values = list(reward.function([*solutions, *evaluations, *scores]))
    assert values[:6] == [1.0, 0.5, 0.0, 0.0, 0.0, None]
    assert values[6:11] == [0.0, 0.5, 1.0, 0.0, 0.0]
    assert values[11:] == [0.0, 0.0, 0.0, -1.0, -1.0]


def test_scores_of_both_rounds_count_and_their_mean_where_they_are_several() -> None:
    (reward,) = build_rewards(config_of("comas").rewards)
    samples = [
        wrote("s", 3, 0, "discussed"),
        wrote("e", 4, 0, "evaluated_again", (3, 0)),
        wrote("<score>3</score>", 5, 0, "scored_again", (3, 0), (4, 0)),
        wrote("<score>2</score>", 5, 1, "scored_again", (3, 0), (4, 0)),
    ]
    assert list(reward.function(samples)) == [0.75, 0.25, 0.0, 0.0]


def test_prompts_have_the_solution_and_its_evaluation() -> None:
    templates = Algorithm.of(config_of("comas")).prompt_templates
    solution, evaluation = wrote("it is 8", 0, 0), wrote("8 is wrong", 1, 0)
    evaluated = templates["evaluated"](Prompt("q"), 0, History(samples=[solution]))
    assert evaluated is not None
    assert evaluated.text.startswith("Problem:\nq\n\nSolution to evaluate:\nit is 8\n")
    scored = templates["scored_again"](Prompt("q"), 0, History(samples=[solution, evaluation]))
    assert scored is not None
    assert "Solution:\nit is 8\n\nEvaluation of the solution:\n8 is wrong\n" in scored.text
    discussed = templates["discussed"](Prompt("q"), 0, History(samples=[solution, evaluation, evaluation, solution]))
    assert discussed is not None
    assert discussed.text.endswith("Solution 2: 8 is wrong\nEvaluation of solution 2: it is 8")


def test_advantages_are_standardized_over_the_step() -> None:
    """Two decisions each of 1, 0, 0 and -1: the mean is 0 and the sample variance 4 / 7."""
    result = advantages_of(config_of("comas"), Step(reward=(1.0, 0.0, 0.0, -1.0), groups=(0, 0, 1, 2)))
    expected = torch.tensor([1.0, 0.0, 0.0, -1.0], dtype=torch.float64)[:, None].expand(4, 2) / (4 / 7) ** 0.5
    torch.testing.assert_close(result.advantage_BT, expected, rtol=0, atol=1e-6)
