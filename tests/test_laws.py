"""A policy that breaks a law gets a sentence: what it does wrong, by how much, where to look."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo import testing
from mmgrpo.config.loading import CONFIGS
from mmgrpo.maths.divergences import LOGPROB_DIVERGENCES
from mmgrpo.testing import LAWS, Subject
from mmgrpo.types import Evaluation, Plan, Prompt
from mmgrpo.values import DRIFT, Value, from_reference

PAGE = CONFIGS.resolve().parent / "docs/learn/smallest-policy.md"
(CODE,) = re.findall(r"```python\n# letter_policy\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
NAMES: dict[str, Any] = {}
exec(CODE, NAMES)
LetterPolicy: Any = NAMES["LetterPolicy"]


def scoring(change: Callable[[Evaluation], Evaluation | None]) -> type:
    """The policy with each slice of its evaluations changed; None leaves the slice out."""

    class Changed(LetterPolicy):
        def evaluate(self, rollout: Any, rows: Any = None, *, values: Any = ()) -> Any:
            for evaluation in super().evaluate(rollout, rows, values=values):
                if (changed := change(evaluation)) is not None:
                    yield changed

    return Changed


def sampling(change: Callable[[Any, Any], Any]) -> type:
    """The policy with each rollout changed; the first argument of the change is the plan."""

    class Changed(LetterPolicy):
        def rollout(self, prompts: Any, *, group_size: int, seed: int, plan: Any = None) -> Any:
            return change(plan or Plan(), super().rollout(prompts, group_size=group_size, seed=seed, plan=plan))

    return Changed


def seeded(seed_of: Callable[[int, int, int], int]) -> type:
    """The policy whose samples have another function of seed, prompt id and member as their seed."""

    class Changed(LetterPolicy):
        def rollout(self, prompts: Any, *, group_size: int, seed: int, plan: Any = None) -> Any:
            NAMES["derive_seed"], former = seed_of, NAMES["derive_seed"]
            try:
                return super().rollout(prompts, group_size=group_size, seed=seed, plan=plan)
            finally:
                NAMES["derive_seed"] = former

    return Changed


def with_methods(**methods: Any) -> type:
    return type("Changed", (LetterPolicy,), methods)


def scaled(evaluation: Evaluation, factor: float) -> Evaluation:
    return replace(evaluation, logprob_BT=factor * evaluation.logprob_BT)


def of_batch(evaluation: Evaluation) -> Evaluation:
    """The mean of the batch is part of each value, but not where the rows have one value."""
    value_BT = evaluation.logprob_BT
    return replace(evaluation, logprob_BT=value_BT + value_BT.exp().mean() - value_BT.exp().mean().detach())


def first_slice(evaluation: Evaluation) -> Evaluation | None:
    return evaluation if list(evaluation.columns) == [0] else None


def by_position(rollout: Any) -> Any:
    """The rollout with groups numbered from 0, whatever the ids of the plan."""
    samples = [replace(sample, group=row // testing.GROUP_SIZE) for row, sample in enumerate(rollout.samples)]
    groups_B = torch.tensor([sample.group for sample in samples])
    return replace(rollout, samples=samples, prompt_index_B=groups_B)


def first_members(policy: Any, prompts: Any, *, group_size: int, seed: int, plan: Any = None) -> Any:
    """The rollout of the members 0 to group_size - 1, whatever those of the plan."""
    plan = replace(plan or Plan(), members=None)
    return LetterPolicy.rollout(policy, prompts, group_size=group_size, seed=seed, plan=plan)


def renumbered(policy: Any, prompts: Any, *, group_size: int, seed: int, plan: Any = None) -> Any:
    """The rollout of as many members from 0, under the numbers of the plan."""
    plan = plan or Plan()
    members = plan.members_of(len(prompts), group_size)
    plan = replace(plan, members=tuple(tuple(range(len(numbers))) for numbers in members))
    rollout = LetterPolicy.rollout(policy, prompts, group_size=group_size, seed=seed, plan=plan)
    numbers = [member for group in members for member in group]
    samples = [replace(sample, member=member) for sample, member in zip(rollout.samples, numbers, strict=True)]
    return replace(rollout, samples=samples)


def load_nothing(policy: Any, directory: Path) -> None:
    pass


def detached(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, logprob_BT=evaluation.logprob_BT.detach() + 0 * evaluation.logprob_BT)


def with_gradient_only(evaluation: Evaluation) -> Evaluation:
    """Other values while gradients are enabled."""
    return scaled(evaluation, 0.5) if torch.is_grad_enabled() else evaluation


def under(change: Callable[[Plan], Plan], *, seed_of: Callable[[Plan, int], int] = lambda plan, seed: seed) -> type:
    """The policy that samples under another plan, or seed, than requested; a plan without noise trains nothing."""

    class Changed(LetterPolicy):
        def rollout(self, prompts: Any, *, group_size: int, seed: int, plan: Any = None) -> Any:
            plan = plan or Plan()
            changed, seed = change(plan), seed_of(plan, seed)
            rollout = super().rollout(prompts, group_size=group_size, seed=seed, plan=changed)
            return rollout.keep(torch.full(rollout.shape, not plan.deterministic))

    return Changed


def with_noise(plan: Plan) -> Plan:
    return replace(plan, stochastic=None) if plan.deterministic else plan


def without_requests(plan: Plan) -> Plan:
    """As if the policy called no ``require_only``."""
    return Plan(
        stochastic=plan.stochastic if plan.deterministic else None,
        prompt_ids=plan.prompt_ids,
        members=plan.members,
        on_samples=plan.on_samples,
    )


def with_states(states_of: Callable[[Any], torch.Tensor]) -> type:
    return sampling(lambda plan, rollout: replace(rollout, state_BT=states_of(rollout)))


def columns_of(rollout: Any) -> torch.Tensor:
    return torch.arange(rollout.shape[1]).expand(rollout.shape)


def evaluating(value_of: Callable[[Any, Evaluation], torch.Tensor], *accepted: Value) -> type:
    """The policy that also has some values, or any if none is named; ``value_of`` computes them."""

    class Changed(LetterPolicy):
        def evaluate(self, rollout: Any, rows: Any = None, *, values: Any = ()) -> Any:
            further = [value for value in values if value in accepted or not accepted]
            others = [value for value in values if value not in further]
            for evaluation in super().evaluate(rollout, rows, values=others):
                computed = {value: value_of(self, evaluation) for value in further}
                yield replace(evaluation, values={**evaluation.values, **computed})

    return Changed


def without_values(policy: Any, rollout: Any, rows: Any = None, *, values: Any = ()) -> Any:
    return LetterPolicy.evaluate(policy, rollout, rows)


def swapped_divergences() -> type:
    """The policy that takes divergences of the reference from the current policy."""
    names: dict[str, Any] = {}
    exec(CODE, names)
    names["LOGPROB_DIVERGENCES"] = {
        name: lambda logprob, other, divergence=divergence: divergence(other, logprob)
        for name, divergence in LOGPROB_DIVERGENCES.items()
    }
    return names["LetterPolicy"]


def zero_of(policy: Any, evaluation: Evaluation) -> torch.Tensor:
    return torch.zeros_like(evaluation.logprob_BT)


def mixed(*numbers: int) -> int:
    return hash(numbers) % 2**31


BROKEN: dict[str, tuple[type, Callable[[Subject], None], str]] = {
    "another temperature in evaluate": (
        scoring(lambda evaluation: scaled(evaluation, 0.5)),
        testing.check_on_policy_gap,
        r"evaluate returns other log-probabilities than rollout stored, with the same weights: they differ by 0\.5, "
        r"allowed is 0\. Look for dropout, a temperature or a dtype that only one of the two applies",
    ),
    "a mask of zeros": (
        sampling(lambda plan, rollout: replace(rollout, mask_BT=torch.zeros_like(rollout.mask_BT))),
        testing.check_on_policy_gap,
        r"no decision of the rollout is trained: mask_BT is False everywhere\. Look at the mask that rollout returns",
    ),
    "the first decision alone": (
        scoring(first_slice),
        testing.check_every_decision_once,
        r"evaluate\(rollout\) yields the decision of row 0, column 1 0 times, and 1 is right\. Look at the slices",
    ),
    "a gradient with the mean of its batch": (
        scoring(of_batch),
        testing.check_rows_and_batches,
        r"the gradients of two parts of the rows do not add up to that of all rows: they differ by 0\.02\d+ of its "
        r"norm\. Look for a value that depends on the other rows",
    ),
    "noise without the seed": (
        seeded(lambda seed, prompt, member: mixed(prompt, member)),
        testing.check_seeds,
        r"member 0 of group 0 is the same under another seed\. Look at the random generator: its seed must depend on "
        r"the argument seed",
    ),
    "noise without the member": (
        seeded(lambda seed, prompt, member: mixed(seed, prompt)),
        testing.check_seeds,
        r"the members of group 0 are equal, so its advantages are 0\. Look at the random generator",
    ),
    "global random numbers": (
        seeded(lambda seed, prompt, member: int(torch.randint(2**31, ()))),
        testing.check_seeds,
        r"two rollouts with one seed have different samples\. Look at the random numbers: each sample needs "
        r"a generator",
    ),
    "groups without the ids of the plan": (
        sampling(lambda plan, rollout: by_position(rollout)),
        testing.check_prompt_ids,
        r"prompt_index_B is \[0, 0, 1, 1\] where plan\.prompt_ids = \(5, 9\) makes it \[5, 5, 9, 9\]\. Look at "
        r"prompt_index_B in rollout",
    ),
    "noise without the prompt": (
        seeded(lambda seed, prompt, member: mixed(seed, member)),
        testing.check_prompt_ids,
        r"one prompt under two ids has the same sample\. Look at the random generator: its seed must depend on the "
        r"id of the prompt",
    ),
    "members that the plan does not request": (
        with_methods(rollout=first_members),
        testing.check_members,
        r"the samples are \[\(0, 0\), \(0, 1\), \(1, 0\), \(1, 1\)\] \(group, member\) where plan\.members requests "
        r"\[\(0, 1\), \(0, 3\), \(1, 3\)\]\. Look at the rows of rollout: plan\.members_of",
    ),
    "noise by the position in the group": (
        with_methods(rollout=renumbered),
        testing.check_members,
        r"member 1 is another sample where the plan requests other members of the group\. Look at the random generator",
    ),
    "samples that are not emitted": (
        sampling(lambda plan, rollout: replace(rollout, samples=[replace(sample) for sample in rollout.samples])),
        testing.check_emitted_samples,
        r"rollout passed 4 samples to plan\.on_samples and returned 4, which must be the same objects, each once\. "
        r"Look for copies",
    ),
    "a reference with the trained weights": (
        with_methods(reference=lambda policy: nullcontext()),
        testing.check_reference,
        r"the reference changes with the trained weights\. Look at reference\(\): it must use a copy of the weights",
    ),
    "a load that does nothing": (
        with_methods(load=load_nothing),
        testing.check_save_and_load,
        r"a policy that loads the saved files has other log-probabilities than the one that saved them\. Look at save "
        r"and load",
    ),
    "log-probabilities without a gradient": (
        scoring(detached),
        testing.check_gradients,
        r"0 of 1 trained parameters get a gradient\. Look for a detach or torch\.no_grad in evaluate",
    ),
    "log-probabilities without a gradient in batches": (
        scoring(detached),
        testing.check_rows_and_batches,
        r"^0 of 1 trained parameters get a gradient\. Look for a detach or torch\.no_grad in evaluate",
    ),
    "another temperature in updates": (
        scoring(with_gradient_only),
        testing.check_on_policy_gap,
        r"evaluate returns other log-probabilities while gradients are enabled, as in an update, than rollout stored: "
        r"they differ by 0\.5, allowed is 0, and without gradients they agree",
    ),
    "a plan without noise that is sampled": (
        under(with_noise),
        testing.check_plans,
        r"a plan without random decisions has the samples of one with them\. Look at plan\.deterministic",
    ),
    "a plan without noise that is sampled under another seed": (
        under(with_noise, seed_of=lambda plan, seed: seed + 7 * plan.deterministic),
        testing.check_plans,
        r"the members of group 0 differ, or change with the seed, in a plan without random decisions\. Look at "
        r"plan\.deterministic",
    ),
    "a mask that ignores the plan": (
        sampling(lambda plan, rollout: replace(rollout, mask_BT=torch.ones_like(rollout.mask_BT))),
        testing.check_plans,
        r"mask_BT keeps 16 decisions of a plan that samples none at random\. Look at plan\.deterministic",
    ),
    "requests that are ignored": (
        under(without_requests),
        testing.check_plans,
        r"rollout accepts plan\.stochastic = \(0,\) and does not do what it requests\. Look at plan\.require_only",
    ),
    "settings that are ignored": (
        under(lambda plan: replace(plan, settings={})),
        testing.check_plans,
        r"rollout accepts plan\.settings = \{'no_such_setting': 1\} and does not do what it requests",
    ),
    "common noise that is ignored": (
        under(lambda plan: replace(plan, same_initial_noise=False)),
        testing.check_plans,
        r"rollout accepts plan\.same_initial_noise = True and does not do what it requests",
    ),
    "a token window that is ignored": (
        under(lambda plan: replace(plan, token_window=None)),
        testing.check_plans,
        r"rollout accepts plan\.token_window = 1 and does not do what it requests",
    ),
    "splits that are ignored": (
        under(lambda plan: replace(plan, splits=())),
        testing.check_plans,
        r"rollout accepts plan\.splits and does not do what it requests",
    ),
    "continuations that are ignored": (
        under(lambda plan: replace(plan, continues=None)),
        testing.check_plans,
        r"rollout accepts plan\.continues and does not do what it requests",
    ),
    "a lookahead that is ignored": (
        under(lambda plan: replace(plan, lookahead=None)),
        testing.check_plans,
        r"rollout accepts plan\.lookahead and does not do what it requests",
    ),
    "an environment that is ignored": (
        under(lambda plan: replace(plan, environment=None)),
        testing.check_plans,
        r"rollout accepts plan\.environment and does not do what it requests",
    ),
    "one state of all decisions": (
        with_states(lambda rollout: torch.zeros_like(rollout.state_BT)),
        testing.check_states,
        r"row 0, column 0 and row 0, column 1 have the same number 0 in state_BT, but one is taken after the other\. "
        r"Look at state_BT",
    ),
    "states without the prompt": (
        with_states(columns_of),
        testing.check_states,
        r"row 0, column 0 and row 2, column 0 have the same number 0 in state_BT, but their prompts differ",
    ),
    "states without the decisions before them": (
        with_states(lambda rollout: columns_of(rollout) + 4 * rollout.prompt_index_B[:, None]),
        testing.check_states,
        r"row 0, column 1 and row 1, column 1 have the same number 1 in state_BT, but the decisions before them differ",
    ),
    "a state of two lengths": (
        with_states(
            lambda rollout: columns_of(rollout) + 4 * rollout.prompt_index_B[:, None] + torch.arange(4)[:, None] % 2
        ),
        testing.check_states,
        r"row 0, column 1 and row 1, column 0 have the same number 1 in state_BT, but 1 and 0 decisions are before",
    ),
    "values that are ignored": (
        with_methods(evaluate=without_values),
        testing.check_values,
        r"evaluate accepts values = \[no_such_value\] and yields slices without it\. Look at the argument values",
    ),
    "values of any name": (
        evaluating(zero_of),
        testing.check_values,
        r"evaluate accepts values = \[no_such_value\]\. Look at the argument values: a value that the policy does not "
        r"have raises ConfigError",
    ),
    "a divergence with swapped arguments": (
        swapped_divergences(),
        testing.check_values,
        r"k1@reference differs by 0\.\d+ from its formula, allowed is 1e-06\. Look at the divergences of evaluate: the "
        r"arguments are swapped: the current log-probability is first",
    ),
    "a divergence of 0": (
        evaluating(zero_of, from_reference("k3")),
        testing.check_values,
        r"k3@reference differs by 0\.\d+ from its formula, .*: LOGPROB_DIVERGENCES take the current log-probability",
    ),
    "a drift of the current weights": (
        evaluating(zero_of, DRIFT),
        testing.check_values,
        r"gaussian@old is 0 at other weights than those that sampled\. Look at plan\.values",
    ),
    "a drift of other means": (
        evaluating(lambda policy, evaluation: torch.ones_like(evaluation.logprob_BT), DRIFT),
        testing.check_values,
        r"gaussian@old is 1 at the weights that sampled, where 0 is right\. Look at the means that rollout stores",
    ),
    "a frozen parameter that requires a gradient": (
        with_methods(trainable=property(lambda policy: [torch.nn.Parameter(torch.zeros(1))])),
        testing.check_reference,
        r"the log-probabilities do not change with the trained weights\. Look at trainable",
    ),
}
"""Fault -> a policy with it, the law that it breaks, the sentence."""


def parameters_of(policy: Any) -> list[torch.nn.Parameter]:
    return [policy.logits]


def subject_of(policy: type) -> Subject:
    return Subject(
        make=lambda batch: policy(),
        parameters=parameters_of,
        prompts=[Prompt("one"), Prompt("two")],
    )


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_law_is_named_with_the_place_to_look_at(fault: str) -> None:
    policy, law, sentence = BROKEN[fault]
    with pytest.raises(AssertionError, match=sentence):
        law(subject_of(policy))


def test_cause_of_a_failure_is_the_first_law_that_fails() -> None:
    sentences = []
    for law in LAWS:
        try:
            law(subject_of(scoring(detached)))
        except AssertionError as error:
            sentences.append((law.__name__, str(error)[:43]))
    cause = "0 of 1 trained parameters get a gradient. L"
    assert sentences == [("check_gradients", cause), ("check_rows_and_batches", cause)]


def test_policy_without_faults_breaks_no_law() -> None:
    for law in LAWS:
        law(subject_of(LetterPolicy))


def test_divergences_that_overflow_are_left_out() -> None:
    def logprob(policy: Any, token_BT: torch.Tensor) -> torch.Tensor:
        return 4000 * LetterPolicy._logprob(policy, token_BT)

    policy = with_methods(_logprob=logprob)()
    rollout = policy.rollout([Prompt("one"), Prompt("two")], group_size=2, seed=testing.SEED)
    testing.move(policy.trainable)
    assert testing.value_BT_of(policy, rollout, from_reference("k3")).isinf().any()
    testing.check_values(replace(subject_of(with_methods(_logprob=logprob)), rounding=1e-5))


def test_every_check_of_a_law_has_a_sentence() -> None:
    laws = ast.parse(Path(testing.__file__).read_text())
    checks = [
        node for node in ast.walk(laws) if isinstance(node, ast.Assert) and "isinstance" not in ast.dump(node.test)
    ]
    assert len(checks) > 30
    assert [node.lineno for node in checks if node.msg is None] == []
