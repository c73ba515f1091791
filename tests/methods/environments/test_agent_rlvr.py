"""Agent-RLVR: the attempts with guidance after a failure, their prompt, and the loss of a pair, by hand."""

from __future__ import annotations

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.history import History
from mmgrpo.maths.strategies import Setting
from mmgrpo.types import Prompt
from mmgrpo.values import Value
from tests.configs.method_rows import ONE_OF_FOUR, SCORED
from tests.configs.method_steps import Step, assert_loss, config_of
from tests.maths.round_rows import round_of


def test_failed_tasks_are_attempted_again_with_guidance() -> None:
    """Of two tasks the first fails: four further attempts, which train with their guidance."""
    algorithm = Algorithm.of(config_of("agent-rlvr"))
    strategy, setting = algorithm.strategy, Setting(step=0, num_prompts=2, group_size=4)
    first = round_of(strategy.ask((), setting), [0, 0, 0, 0, 0, 1, 0, 0])
    (request,) = strategy.ask([first], setting)
    assert (request.prompt, request.members, request.prompt_template) == (0, (4, 5, 6, 7), "guided")
    assert not request.train_without_template
    guided = algorithm.prompt_templates["guided"](Prompt("Fix it.", columns={"guidance": "See a.py."}), 4, History())
    assert guided is not None
    assert guided.text == "Fix it.\n\nAn earlier attempt at this task failed. Guidance:\nSee a.py."


def test_loss_of_the_best_and_the_worst() -> None:
    """The best has the log-ratio 0.5, the first of the worst -0.2: log(1 + e^-0.07)."""
    reference = {Value("logprob", "reference"): [[-1.0, -1.0]] * 4}
    assert_loss("agent-rlvr", Step(reward=ONE_OF_FOUR, log_ratio=SCORED, values=reference), 0.658760)
