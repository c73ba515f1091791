"""The laws that every policy obeys, as checks for any policy.

A test module wraps its policy in a ``Subject`` and calls the checks in ``LAWS``. Each check builds new policies, so
that no check sees weights that another one has trained. A check that fails raises AssertionError with what the policy
does wrong, by how much, and where to look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from mmgrpo.differentiating import backward
from mmgrpo.errors import ConfigError, PolicyError
from mmgrpo.maths.divergences import LOGPROB_DIVERGENCES
from mmgrpo.policy import Policy, SupportsOffPolicyScoring, SupportsPromptOverride, SupportsWindows
from mmgrpo.splits import Continuation, Lookahead, Split
from mmgrpo.types import Plan, Prompt, Rollout, Sample, Source
from mmgrpo.values import DRIFT, Value, from_reference

SEED = 11
GROUP_SIZE = 2
LOOK_AT_BATCHES = (
    "Look at padding, attention masks and position numbers: a row must not depend on the rows that share its batch"
)
LOOK_AT_SEEDS = (
    "Look at the random numbers: each sample needs a generator whose seed is derived from seed, prompt id and member "
    "(mmgrpo.maths.seeds.derive_seed), and no global random state"
)
LOOK_AT_TRAINABLE = "Look at trainable: it lists the parameters that evaluate uses and that are trained, and no others"
UNSUPPORTED = (ConfigError, PolicyError)
"""The errors of a policy for a request or a value that it does not support."""
LARGEST_DIVERGENCE = 1e6  # k3 of a larger one overflows in float32
GRADIENT_ROUNDING = 1e-4  # tolerance of a float32 gradient for another batch composition, relative to its norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A policy under test.

    Attributes:
        make: batch -> the policy, with the same weights each time, that runs at most so many rows at once.
        parameters: policy -> every parameter of the model, trained or not.
        prompts: at least two.
        gap: largest |log-probability now - at rollout| allowed with the batches of the rollout.
        rounding: largest change of a log-probability by another composition of the batches.
        min_trained_frac: least share of the trainable parameters that must receive a gradient.
    """

    make: Callable[[int], Policy]
    parameters: Callable[[Policy], Sequence[nn.Parameter]]
    prompts: Sequence[Prompt]
    gap: float = 0.0
    rounding: float = 1e-6
    min_trained_frac: float = 1.0

    @property
    def rows(self) -> int:
        """Samples of a rollout."""
        return len(self.prompts) * GROUP_SIZE

    def rollout(self, policy: Policy, plan: Plan | None = None) -> Rollout:
        """The rollout that the checks use."""
        return policy.rollout(self.prompts, group_size=GROUP_SIZE, seed=SEED, plan=plan)


def check_on_policy_gap(subject: Subject, plan: Plan | None = None) -> None:
    """The log-probabilities of the rollout equal those of an evaluation with the same weights."""
    policy = subject.make(subject.rows)
    rollout = subject.rollout(policy, plan)
    assert rollout.mask_BT.any(), (
        "no decision of the rollout is trained: mask_BT is False everywhere. Look at the mask that rollout returns; "
        "it is True where a decision was sampled"
    )
    gap = largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT)
    assert gap <= subject.gap, (
        "evaluate returns other log-probabilities than rollout stored, with the same weights: they differ by "
        f"{gap:.3g}, allowed is {subject.gap:.3g}. Look for dropout, a temperature or a dtype that only one of the "
        "two applies, and at the trace: does it hold exactly the decisions that were sampled?"
    )
    gap = largest_difference(values(policy, rollout, grad=True), rollout.old_logprob_BT, rollout.mask_BT)
    assert gap <= subject.gap, (
        "evaluate returns other log-probabilities while gradients are enabled, as in an update, than rollout stored: "
        f"they differ by {gap:.3g}, allowed is {subject.gap:.3g}, and without gradients they agree. Look for dropout, "
        "gradient checkpointing, or a path that evaluate takes where torch.is_grad_enabled()"
    )
    gap = largest_difference(values(subject.make(1), rollout), rollout.old_logprob_BT, rollout.mask_BT)
    assert gap < subject.rounding, (
        f"evaluate returns other log-probabilities for one row at a time: they differ by {gap:.3g}, rounding explains "
        f"{subject.rounding:.3g}. {LOOK_AT_BATCHES}"
    )


def check_every_decision_once(subject: Subject) -> None:
    """Each unmasked decision of the requested rows appears in exactly one slice."""
    policy = subject.make(2)
    rollout = subject.rollout(policy)
    B, T = rollout.shape
    dropped_BT = torch.zeros(B, T, dtype=torch.bool)
    dropped_BT[1, :] = True
    dropped_BT[0, int(rollout.mask_BT[0].nonzero()[0])] = True
    rollout = rollout.keep(~dropped_BT)
    require_once(counts(policy, rollout), rollout.mask_BT.int(), "evaluate(rollout)")
    chosen = [B - 1, 0]
    expected_BT = torch.zeros(B, T, dtype=torch.int32)
    expected_BT[chosen] = rollout.mask_BT[chosen].int()
    require_once(counts(policy, rollout, chosen), expected_BT, f"evaluate(rollout, rows={chosen})")
    require_once(
        counts(policy, rollout, torch.tensor(chosen)), expected_BT, f"evaluate(rollout, rows=tensor({chosen}))"
    )


def require_once(count_BT: Tensor, expected_BT: Tensor, call: str) -> None:
    """Raises AssertionError for the first decision that was streamed more or less often than expected."""
    for row, column in (count_BT != expected_BT).nonzero().tolist():
        number, expected = int(count_BT[row, column]), int(expected_BT[row, column])
        raise AssertionError(
            f"{call} yields the decision of row {row}, column {column} {number} times, and {expected} is right. Look "
            "at the slices: Evaluation.rows has the row numbers in the rollout, its columns the decisions, and only "
            "those with rollout.mask_BT are to be yielded, each once"
        )


def check_rows_and_batches(subject: Subject) -> None:
    """Neither the requested rows nor the batch size changes a value or a gradient, except for rounding."""
    wide, narrow = subject.make(subject.rows), subject.make(1)
    rollout = subject.rollout(wide)
    move(wide.trainable)
    move(narrow.trainable)
    batched_BT, single_BT = values(wide, rollout), values(narrow, rollout)
    difference = largest_difference(batched_BT, single_BT, rollout.mask_BT)
    assert difference < subject.rounding, (
        f"log-probabilities depend on the batch size: they differ by {difference:.3g}, rounding explains "
        f"{subject.rounding:.3g}. {LOOK_AT_BATCHES}"
    )
    chosen = [rollout.shape[0] - 1, 1]
    other_rows = [b for b in range(rollout.shape[0]) if b not in chosen]
    chosen_BT = values(wide, rollout, chosen)
    difference = largest_difference(chosen_BT[chosen], batched_BT[chosen], rollout.mask_BT[chosen])
    assert difference < subject.rounding, (
        f"log-probabilities depend on which rows are requested: they differ by {difference:.3g}, rounding explains "
        f"{subject.rounding:.3g}. Look at the indices into the trace: rows are numbers of rows in the rollout, in any "
        "order"
    )
    all_gradients = gradients(wide, rollout)
    require_reached(subject, all_gradients)
    difference = relative_difference(gradients(narrow, rollout), all_gradients)
    assert difference < GRADIENT_ROUNDING, (
        f"the gradient depends on the batch size: it changes by {difference:.3g} of its norm. Look for a mean over "
        "the rows of a batch, or a value that is detached in some batches"
    )
    parts = zip(gradients(wide, rollout, chosen), gradients(wide, rollout, other_rows), strict=True)
    difference = relative_difference([first + second for first, second in parts], all_gradients)
    assert difference < GRADIENT_ROUNDING, (
        f"the gradients of two parts of the rows do not add up to that of all rows: they differ by {difference:.3g} "
        "of its norm. Look for a value that depends on the other rows, such as a mean over the batch"
    )


def check_seeds(subject: Subject) -> None:
    """A sample is a function of seed, prompt id and member, under any batching; each of the three matters."""
    policy = subject.make(subject.rows)
    first, again = subject.rollout(policy), subject.rollout(policy)
    assert sample_difference(first.samples, again.samples) == 0, (
        f"two rollouts with one seed have different samples. {LOOK_AT_SEEDS}"
    )
    assert torch.equal(first.old_logprob_BT, again.old_logprob_BT), (
        "two rollouts with one seed have the same samples and different log-probabilities. Look for dropout in rollout"
    )
    unbatched = subject.rollout(subject.make(1))
    assert sample_difference(first.samples, unbatched.samples) <= 1, (  # a level of 255, where rounding tips it
        f"a sample depends on the batch that it is sampled in. {LOOK_AT_SEEDS}"
    )
    difference = largest_difference(first.old_logprob_BT, unbatched.old_logprob_BT, first.mask_BT)
    assert difference < subject.rounding, (
        f"the stored log-probabilities depend on the batch size: they differ by {difference:.3g}. {LOOK_AT_BATCHES}"
    )
    other_seed = policy.rollout(subject.prompts, group_size=GROUP_SIZE, seed=SEED + 1)
    for old, new in zip(first.samples, other_seed.samples, strict=True):
        assert sample_difference([old], [new]) > 0, (
            f"member {old.member} of group {old.group} is the same under another seed. Look at the random generator: "
            "its seed must depend on the argument seed"
        )
    for members in (first.samples[b : b + GROUP_SIZE] for b in range(0, subject.rows, GROUP_SIZE)):
        assert sample_difference(members[:1], members[1:2]) > 0, (
            f"the members of group {members[0].group} are equal, so its advantages are 0. Look at the random "
            "generator: its seed must depend on the member"
        )


def check_prompt_ids(subject: Subject) -> None:
    """The ids of the plan, not the positions in the list, key the noise and name the groups.

    Both calls use one group per batch, because rounding of another batch may change the choice of a token.
    """
    policy = subject.make(GROUP_SIZE)
    numbered = policy.rollout(subject.prompts, group_size=GROUP_SIZE, seed=SEED, plan=Plan(prompt_ids=(5, 9)))
    index, expected = numbered.prompt_index_B.tolist(), [5] * GROUP_SIZE + [9] * GROUP_SIZE
    assert index == expected, (
        f"prompt_index_B is {index} where plan.prompt_ids = (5, 9) makes it {expected}. Look at prompt_index_B in "
        "rollout: it has the ids of the plan; the positions of the prompts only where the plan has none"
    )
    members = [sample.member for sample in numbered.samples]
    assert members == list(range(GROUP_SIZE)) * 2, (
        f"the members of two groups are numbered {members}. Look at the order of the rows: prompt by prompt, and in "
        "each group from 0"
    )
    last = policy.rollout(subject.prompts[1:2], group_size=GROUP_SIZE, seed=SEED, plan=Plan(prompt_ids=(9,)))
    assert sample_difference(numbered.samples[GROUP_SIZE:], last.samples) <= 1, (
        "the samples of a prompt depend on the prompts before it. Look at the random generator: its seed must depend "
        "on the id of the prompt in the plan, and not on its position"
    )
    difference = largest_difference(numbered.old_logprob_BT[GROUP_SIZE:], last.old_logprob_BT, last.mask_BT)
    assert difference < subject.rounding, (
        f"the log-probabilities of a prompt depend on the prompts before it: they differ by {difference:.3g}. "
        f"{LOOK_AT_BATCHES}"
    )
    same_prompt = [subject.prompts[0]] * 2
    twice = policy.rollout(same_prompt, group_size=1, seed=SEED, plan=Plan(prompt_ids=(5, 9)))
    assert sample_difference(twice.samples[:1], twice.samples[1:]) > 0, (
        "one prompt under two ids has the same sample. Look at the random generator: its seed must depend on the id "
        "of the prompt in the plan, and not on its text"
    )


def check_members(subject: Subject) -> None:
    """The members of the plan are sampled, and no others; a member is the same among any others."""
    policy = subject.make(1)
    rollout = policy.rollout(
        subject.prompts[:2], group_size=GROUP_SIZE, seed=SEED, plan=Plan(members=((1, GROUP_SIZE + 1), (3,)))
    )
    pairs = [(sample.group, sample.member) for sample in rollout.samples]
    expected = [(0, 1), (0, GROUP_SIZE + 1), (1, 3)]
    assert pairs == expected, (
        f"the samples are {pairs} (group, member) where plan.members requests {expected}. Look at the rows of rollout: "
        "plan.members_of(len(prompts), group_size) lists the members of each prompt"
    )
    group = policy.rollout(subject.prompts[:1], group_size=GROUP_SIZE, seed=SEED)
    assert sample_difference(rollout.samples[:1], group.samples[1:2]) == 0, (
        "member 1 is another sample where the plan requests other members of the group. Look at the random generator: "
        "its seed must depend on the number of the member, and not on its position"
    )


def check_plans(subject: Subject) -> None:
    """A plan without random decisions gives greedy samples that train nothing; other requests count, or raise."""
    policy = subject.make(subject.rows)
    sampled, greedy = subject.rollout(policy), subject.rollout(policy, Plan(stochastic=()))
    assert not greedy.mask_BT.any(), (
        f"mask_BT keeps {int(greedy.mask_BT.sum())} decisions of a plan that samples none at random. Look at "
        "plan.deterministic: mask_BT is True only where a decision was sampled at random"
    )
    assert sample_difference(sampled.samples, greedy.samples) > 0, (
        "a plan without random decisions has the samples of one with them. Look at plan.deterministic (plan.stochastic "
        "is empty): each decision then is the likeliest one, or the mean of its Gaussian, as evaluations need it"
    )
    if all(sample.text is not None or sample.tokens is not None for sample in greedy.samples):  # no initial noise
        other = policy.rollout(subject.prompts, group_size=GROUP_SIZE, seed=SEED + 1, plan=Plan(stochastic=()))
        for first, second, again in zip(
            greedy.samples[::GROUP_SIZE], greedy.samples[1::GROUP_SIZE], other.samples[::GROUP_SIZE], strict=True
        ):
            assert sample_difference([first, first], [second, again]) == 0, (
                f"the members of group {first.group} differ, or change with the seed, in a plan without random "
                "decisions. Look at plan.deterministic (plan.stochastic is empty): each decision then is the likeliest "
                "one, and uses no random number"
            )
    for request, (plan, is_met) in _requests(sampled, greedy).items():
        with suppress(*UNSUPPORTED):  # a request that the policy does not support
            rollout = subject.rollout(policy, plan)
            assert is_met(rollout), (
                f"rollout accepts plan.{request} and does not do what it requests. Look at plan.require_only: it "
                "raises for each request of a plan that its arguments do not name, and those that they name must be met"
            )


def _requests(sampled: Rollout, greedy: Rollout) -> dict[str, tuple[Plan, Callable[[Rollout], bool]]]:
    """Requests of a plan that not every policy supports, each with whether a rollout meets it."""
    environments: list[None] = []

    def environment() -> None:
        environments.append(None)
        raise PolicyError("the environment of a law is never used")

    def shares_first(rollout: Rollout) -> bool:
        return torch.equal(rollout.state_BT[::GROUP_SIZE, 0], rollout.state_BT[1::GROUP_SIZE, 0])

    def branches_second(rollout: Rollout) -> bool:
        state_BT = rollout.state_BT[:, :2]
        return torch.equal(state_BT[::GROUP_SIZE], state_BT[1::GROUP_SIZE]) and bool(rollout.mask_BT[:, 1:2].any())

    def begin(rollout: Rollout) -> bool:
        return all(_first(sample) == [forced[row // GROUP_SIZE]] for row, sample in enumerate(rollout.samples))

    def differ(rollout: Rollout) -> bool:
        groups = zip(rollout.samples[::GROUP_SIZE], rollout.samples[1::GROUP_SIZE], strict=True)
        likeliest = map(_first, greedy.samples[::GROUP_SIZE])
        return all(
            sample.tokens != other.tokens and token in (_first(sample), _first(other))
            for (sample, other), token in zip(groups, likeliest, strict=True)
        )

    forced = [(_first(sample) or [0])[0] for sample in sampled.samples[::GROUP_SIZE]]
    continues = tuple(Continuation(token_ids=(token,)) for token in forced)
    lookahead = Lookahead(max_tokens=2, min_probability=0.0, max_gap=1.1, ages=(), min_distance=0.0, symbols="")
    return {
        "stochastic = (0,)": (Plan(stochastic=(0,)), lambda rollout: not rollout.mask_BT[:, 1:].any()),
        "settings = {'no_such_setting': 1}": (Plan(settings={"no_such_setting": 1}), lambda rollout: False),
        "same_initial_noise = True": (Plan(same_initial_noise=True), shares_first),
        "token_window = 1": (Plan(token_window=1), lambda rollout: bool((rollout.mask_BT.sum(1) <= 1).all())),
        "environment": (Plan(environment=environment), lambda rollout: bool(environments)),
        "splits": (Plan(splits=(Split(decision=1, factor=GROUP_SIZE),)), branches_second),
        "continues": (Plan(continues=continues), begin),
        "lookahead": (Plan(lookahead=lookahead), differ),
    }


def _first(sample: Sample) -> list[int]:
    return list(sample.tokens or ())[:1]


def check_states(subject: Subject) -> None:
    """Decisions with one state have one prompt and the same decisions before them."""
    policy = subject.make(subject.rows)
    move(policy.trainable)  # decisions before a state are compared by their log-probabilities
    rollout = subject.rollout(policy)
    cells: dict[int, list[tuple[int, int]]] = {}
    for row, column in rollout.mask_BT.nonzero().tolist():
        cells.setdefault(int(rollout.state_BT[row, column]), []).append((row, column))
    for state, ((row, column), *others) in cells.items():
        for other in others:
            reason = _difference_of_states(rollout, (row, column), other, subject.rounding)
            assert not reason, (
                f"row {row}, column {column} and row {other[0]}, column {other[1]} have the same number {state} in "
                f"state_BT, but {reason}. Look at state_BT: states with one number are computed once, so only "
                "decisions whose prompt and earlier decisions are the same share one; torch.arange(B * T) shares none"
            )


def _difference_of_states(rollout: Rollout, cell: tuple[int, int], other: tuple[int, int], rounding: float) -> str:
    """Why two decisions have different states, in words; empty: nothing shows that they have."""
    row, other_row = cell[0], other[0]
    if rollout.samples[row].group != rollout.samples[other_row].group:
        return "their prompts differ"
    if row == other_row:
        is_same_step = rollout.segment_BT[cell] == rollout.segment_BT[other]  # tokens that are unmasked together
        return "" if is_same_step else "one is taken after the other"
    before, other_before = _logprobs_before(rollout, *cell), _logprobs_before(rollout, *other)
    if len(before) != len(other_before):
        return f"{len(before)} and {len(other_before)} decisions are before them"
    differs = len(before) > 0 and float((before - other_before).abs().max()) > rounding
    return "the decisions before them differ" if differs else ""


def _logprobs_before(rollout: Rollout, row: int, column: int) -> Tensor:
    """Log-probabilities of the decisions of a row before the state of one of them."""
    earlier_T = rollout.mask_BT[row, :column] & (rollout.state_BT[row, :column] != rollout.state_BT[row, column])
    return rollout.old_logprob_BT[row, :column][earlier_T]


def check_emitted_samples(subject: Subject) -> None:
    """Samples are emitted each once, as the objects that the rollout holds; a policy that emits none passes."""
    for stochastic in (None, ()):  # sampled at random, and without noise
        emitted: list[Sample] = []
        rollout = subject.rollout(subject.make(1), Plan(stochastic=stochastic, on_samples=emitted.extend))
        assert not emitted or sorted(map(id, emitted)) == sorted(map(id, rollout.samples)), (
            f"rollout passed {len(emitted)} samples to plan.on_samples and returned {len(rollout.samples)}, which "
            "must be the same objects, each once. Look for copies made after the call, and for rows that are left "
            "out or repeated"
        )


def check_reference(subject: Subject) -> None:
    """The reference is the untrained policy, and using it does not change the trained one."""
    policy = subject.make(subject.rows)
    rollout = subject.rollout(policy)
    untrained_BT = values(policy, rollout)
    with policy.reference():  # a full fine-tune copies its weights on the first use
        assert torch.equal(values(policy, rollout), untrained_BT), (
            "before any training the reference has other log-probabilities than the policy. Look at the weights that "
            "reference() uses: they are those at the start of the run"
        )
    flags = [p.requires_grad for p in subject.parameters(policy)]
    move(policy.trainable)
    trained_BT = values(policy, rollout)
    assert largest_difference(trained_BT, untrained_BT, rollout.mask_BT) > 0, (
        f"the log-probabilities do not change with the trained weights. {LOOK_AT_TRAINABLE}"
    )
    with policy.reference():
        assert torch.equal(values(policy, rollout), untrained_BT), (
            "the reference changes with the trained weights. Look at reference(): it must use a copy of the weights, "
            "or switch the adapters off"
        )
    assert torch.equal(values(policy, rollout), trained_BT), (
        "after reference() the policy has other log-probabilities than before it. Look at the end of reference(): it "
        "must restore the trained weights, also after an error (try, finally)"
    )
    assert [p.requires_grad for p in subject.parameters(policy)] == flags, (
        "reference() changes which parameters require a gradient. Restore requires_grad at its end"
    )


def check_values(subject: Subject) -> None:
    """The values that evaluate is asked for are those of their formulas; one that the policy lacks raises an error.

    A policy that raises an error for every divergence passes.
    """
    policy = subject.make(subject.rows)
    rollout = subject.rollout(policy)
    with policy.reference():  # a full fine-tune copies its weights on the first use
        reference_BT = values(policy, rollout)
    unknown = Value("no_such_value")
    with suppress(*UNSUPPORTED):
        value_BT_of(policy, subject.rollout(policy, Plan(values=(unknown,))), unknown)
        raise AssertionError(
            f"evaluate accepts values = [{unknown}]. Look at the argument values: a value that the policy does not "
            "have raises ConfigError"
        )
    drifting = None
    with suppress(*UNSUPPORTED):  # a policy without Gaussian decisions
        drifting = subject.rollout(policy, Plan(values=(DRIFT,)))
        drift = float(value_BT_of(policy, drifting, DRIFT).abs().max())
        assert drift <= max(subject.gap, subject.rounding), (
            f"{DRIFT} is {drift:.3g} at the weights that sampled, where 0 is right. Look at the means that rollout "
            "stores for plan.values"
        )
    move(policy.trainable)
    now_BT, allowed = values(policy, rollout), max(subject.gap, subject.rounding)
    for name, divergence in LOGPROB_DIVERGENCES.items():
        value = from_reference(name)
        with suppress(*UNSUPPORTED):
            value_BT = value_BT_of(policy, rollout, value)
            expected_BT, swapped_BT = divergence(now_BT, reference_BT), divergence(reference_BT, now_BT)
            mask_BT = rollout.mask_BT & (expected_BT.abs() < LARGEST_DIVERGENCE)
            if not mask_BT.any():
                continue
            largest = largest_difference(value_BT, expected_BT, mask_BT)
            hint = (
                "the arguments are swapped: the current log-probability is first, that of the reference second"
                if largest_difference(value_BT, swapped_BT, mask_BT) < largest
                else "LOGPROB_DIVERGENCES take the current log-probability and that of the reference"
            )
            assert largest <= allowed, (
                f"{value} differs by {largest:.3g} from its formula, allowed is {allowed:.3g}. Look at the "
                f"divergences of evaluate: {hint}"
            )
    if drifting is not None:
        with suppress(*UNSUPPORTED):
            assert value_BT_of(policy, drifting, DRIFT).abs().max() > 0, (
                f"{DRIFT} is 0 at other weights than those that sampled. Look at plan.values: rollout stores the means "
                "of the weights that sampled, and evaluate reads those"
            )


def check_save_and_load(subject: Subject, directory: Path | None = None) -> None:
    """Loading the saved files into an untrained policy gives the trained one, bitwise.

    Args:
        subject: the policy.
        directory: an empty folder; None: a temporary one.
    """
    if directory is None:
        with TemporaryDirectory() as temporary:
            return check_save_and_load(subject, Path(temporary))
    policy, other = subject.make(subject.rows), subject.make(subject.rows)
    rollout = subject.rollout(policy)
    untrained_BT = values(other, rollout)
    move(policy.trainable)
    trained_BT = values(policy, rollout)
    policy.save(directory)
    other.load(directory)
    assert largest_difference(trained_BT, untrained_BT, rollout.mask_BT) > 0, (
        f"the log-probabilities do not change with the trained weights. {LOOK_AT_TRAINABLE}"
    )
    assert torch.equal(values(other, rollout), trained_BT), (
        "a policy that loads the saved files has other log-probabilities than the one that saved them. Look at save "
        "and load: which weights are left out, or rounded by another dtype?"
    )
    for number, (parameter, loaded) in enumerate(zip(policy.trainable, other.trainable, strict=True)):
        assert torch.equal(parameter, loaded), (
            f"parameter {number} of trainable, of shape {tuple(parameter.shape)}, is not saved or not loaded. Look at "
            "save and load; a resumed run would continue from other weights"
        )


def check_gradients(subject: Subject) -> None:
    """Gradients are finite and nonzero, and only trained parameters have one."""
    policy = subject.make(subject.rows)
    rollout = subject.rollout(policy)
    move(policy.trainable)  # an adapter that adds nothing yet passes no gradient to its first factor
    require_reached(subject, gradients(policy, rollout))
    trained = {id(p) for p in policy.trainable}
    for number, parameter in enumerate(subject.parameters(policy)):
        is_trained = id(parameter) in trained
        assert parameter.grad is None or is_trained, (
            f"parameter {number} of the model has a gradient and is not trained. Set requires_grad to False for it"
        )
        assert parameter.requires_grad == is_trained, (
            f"parameter {number} of the model has requires_grad = {parameter.requires_grad} and is "
            f"{'' if is_trained else 'not '}in trainable. {LOOK_AT_TRAINABLE}"
        )


def require_reached(subject: Subject, grads: Sequence[Tensor]) -> None:
    """Raises AssertionError for a gradient that is not finite, or 0 for more parameters than the subject allows."""
    for number, gradient in enumerate(grads):
        assert torch.isfinite(gradient).all(), (
            f"the gradient of parameter {number} of trainable is not finite. Look for a logarithm of 0, a division by "
            "0 or an overflow in the log-probability"
        )
    reached = sum(bool(gradient.any()) for gradient in grads)
    assert reached >= subject.min_trained_frac * len(grads), (
        f"{reached} of {len(grads)} trained parameters get a gradient. Look for a detach or torch.no_grad in "
        "evaluate, and for parameters of trainable that no log-probability depends on"
    )


def check_replayed_rows(subject: Subject) -> None:
    """Replayed rows with their original prompt have a ratio of 1 while no weight has changed.

    The check covers all decisions and, for policies with windows, the last decision only. Policies without
    ``SupportsOffPolicyScoring`` pass.
    """
    policy = subject.make(subject.rows)
    if not isinstance(policy, SupportsOffPolicyScoring):
        return
    plans = [Plan()]
    with suppress(ConfigError):  # a policy whose settings have no window
        if isinstance(policy, SupportsWindows) and policy.num_decisions > 1:
            plans.append(Plan(stochastic=(policy.num_decisions - 1,)))
    for plan in plans:
        rollout = subject.rollout(policy, replace(plan, keep_latents=True))
        check_ratio_of_read_rows(subject, policy, rollout)


def check_prompt_independence(subject: Subject) -> None:
    """Decisions evaluated under their own prompts have the same log-probabilities.

    Policies without ``SupportsPromptOverride`` pass.
    """
    policy = subject.make(subject.rows)
    if not isinstance(policy, SupportsPromptOverride):
        return
    rollout = subject.rollout(policy)
    same = policy.override_prompts(rollout, [sample.prompt for sample in rollout.samples])
    assert torch.equal(same.mask_BT, rollout.mask_BT), (
        "override_prompts with the samples' own prompts changes which decisions are trained. Look at the mask_BT "
        "that it returns"
    )
    largest = largest_difference(values(policy, same), rollout.old_logprob_BT, rollout.mask_BT)
    assert largest <= max(subject.gap, subject.rounding), (
        "override_prompts with the samples' own prompts changes their log-probabilities, by "
        f"{largest:.3g}. Look at how it encodes a prompt: as rollout does"
    )


def check_ratio_of_read_rows(subject: Subject, policy: Policy, rollout: Rollout) -> None:
    """The rows of a rollout, read under another seed in another order, have the same decisions at a ratio of 1.

    Samples without tokens have no stored log-probabilities: their decisions are new, and scored by the current policy.
    """
    assert isinstance(policy, SupportsOffPolicyScoring)
    stored = [rollout.off_policy_sample(row, Source.REPLAY) for row in reversed(range(subject.rows))]
    has_tokens = all(sample.tokens is not None for sample in rollout.samples)
    if not has_tokens:
        stored = [replace(sample, old_logprob_T=None) for sample in stored]
    try:
        read = policy.read(stored, seed=SEED + 1)
    except PolicyError:
        if has_tokens:
            raise
        return  # a pipeline that reports that its samples cannot be noised again
    gap = subject.gap if has_tokens else 0.0
    assert read.mask_BT.any(), (
        "no decision of rows that were read is trained: mask_BT is False everywhere. Look at the mask that read returns"
    )
    allowed = max(gap, subject.rounding)
    largest = largest_difference(values(policy, read), read.old_logprob_BT, read.mask_BT)
    assert largest <= allowed, (
        "rows that were read have a ratio of another value than 1 with the same weights: their log-probabilities "
        f"differ by {largest:.3g}, allowed is {allowed:.3g}. Look at the trace that read builds: it holds what "
        "evaluate scores"
    )
    if has_tokens:
        mask_BT = rollout.mask_BT.flip(0)
        assert torch.equal(read.mask_BT, mask_BT), (
            "read rows train other decisions than were sampled. Look at the mask_BT that read returns"
        )
        old_BT = rollout.old_logprob_BT.flip(0)
        assert largest_difference(read.old_logprob_BT, old_BT, mask_BT) == 0, (
            "read changes the stored log-probabilities. Look at old_logprob_BT: those of the sample, as they are"
        )
        again = policy.read([read.off_policy_sample(row, Source.REPLAY) for row in range(subject.rows)], seed=SEED + 2)
        assert torch.equal(again.mask_BT, read.mask_BT), (
            "rows that were read twice train other decisions than after once. Look at the mask_BT that read returns"
        )
        largest = largest_difference(values(policy, again), read.old_logprob_BT, read.mask_BT)
        assert largest <= allowed, (
            f"rows that were read twice have other log-probabilities than after once, by {largest:.3g}. Look at the "
            "fields of the sample that read does not keep"
        )


LAWS: tuple[Callable[[Subject], None], ...] = (
    check_on_policy_gap,
    check_every_decision_once,
    check_gradients,
    check_rows_and_batches,
    check_seeds,
    check_prompt_ids,
    check_members,
    check_plans,
    check_states,
    check_emitted_samples,
    check_reference,
    check_values,
    check_save_and_load,
    check_replayed_rows,
    check_prompt_independence,
)
"""The checks that every policy must pass, built-in or custom; the causes of failures of others are first."""


def values(
    policy: Policy, rollout: Rollout, rows: Sequence[int] | Tensor | None = None, *, grad: bool = False
) -> Tensor:
    """(B, T) log-probabilities under the current policy; 0 at decisions that were not streamed.

    Args:
        policy: the policy.
        rollout: a rollout of it.
        rows: indices along B; None: all.
        grad: whether gradients are enabled while the policy evaluates.

    Returns:
        The log-probabilities, without a graph.
    """
    value_BT = torch.zeros(rollout.shape)
    with torch.set_grad_enabled(grad):
        for evaluation in policy.evaluate(rollout, rows):
            index = _rows_of(evaluation.rows, rollout, rows)
            value_BT[index[:, None], torch.as_tensor(evaluation.columns)] = evaluation.logprob_BT.detach().cpu()
    return value_BT * rollout.mask_BT


def value_BT_of(policy: Policy, rollout: Rollout, value: Value) -> Tensor:
    """(B, T) a further value of the decisions, without grad; 0 at masked ones.

    Raises AssertionError for a slice without it, and the error of a policy that does not have the value.
    """
    value_BT = torch.zeros(rollout.shape)
    with torch.no_grad():
        for evaluation in policy.evaluate(rollout, values=[value]):
            assert value in evaluation.values, (
                f"evaluate accepts values = [{value}] and yields slices without it. Look at the argument values: each "
                "slice holds every requested value in Evaluation.values, and a value that the policy does not have "
                "raises ConfigError"
            )
            index = _rows_of(evaluation.rows, rollout, None)
            value_BT[index[:, None], torch.as_tensor(evaluation.columns)] = evaluation.values[value].float().cpu()
    return value_BT * rollout.mask_BT


def counts(policy: Policy, rollout: Rollout, rows: Sequence[int] | Tensor | None = None) -> Tensor:
    """(B, T) how often each unmasked decision was streamed."""
    count_BT = torch.zeros(rollout.shape, dtype=torch.int32)
    with torch.no_grad():
        for evaluation in policy.evaluate(rollout, rows):
            index = _rows_of(evaluation.rows, rollout, rows)
            cells = index[:, None], torch.as_tensor(evaluation.columns)
            count_BT[cells] += torch.isfinite(evaluation.logprob_BT.cpu()).int()
    return count_BT * rollout.mask_BT


def gradients(policy: Policy, rollout: Rollout, rows: Sequence[int] | Tensor | None = None) -> list[Tensor]:
    """Gradient of a fixed random weighting of the log-probabilities, slice by slice; the gradients are cleared."""
    weight_BT = torch.randn(rollout.shape, generator=torch.Generator().manual_seed(3)) * rollout.mask_BT
    for parameter in policy.trainable:
        parameter.grad = None
    for evaluation in policy.evaluate(rollout, rows):
        index = _rows_of(evaluation.rows, rollout, rows)
        weight = weight_BT[index[:, None], torch.as_tensor(evaluation.columns)].to(evaluation.logprob_BT)
        backward((weight * evaluation.logprob_BT).sum())
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.trainable]
    for parameter in policy.trainable:
        parameter.grad = None
    return grads


@torch.no_grad()
def move(parameters: Sequence[nn.Parameter], *, scale: float = 0.05, seed: int = 5) -> None:
    """Adds the same small noise to every parameter each time, also to those that are zero by construction."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter))


def largest_difference(values_BT: Tensor, others_BT: Tensor, mask_BT: Tensor) -> float:
    """Largest difference over the decisions of a mask, relative to the value where that is larger than 1."""
    return float(((values_BT - others_BT) / others_BT.abs().clamp(min=1))[mask_BT].abs().max())


def relative_difference(gradient: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Norm of the difference of two gradients of all parameters over the norm of the second."""
    flat, other_flat = (torch.cat([part.flatten() for part in parts]) for parts in (gradient, other))
    return float((flat - other_flat).norm() / other_flat.norm())


def sample_difference(samples: Sequence[Sample], others: Sequence[Sample]) -> float:
    """0 for equal samples; else the largest difference of a pixel or number, infinity if texts differ."""
    return max(_difference(a, b) for a, b in zip(samples, others, strict=True))


def _difference(sample: Sample, other: Sample) -> float:
    if (sample.text, sample.tokens) != (other.text, other.tokens):
        return float("inf")
    pairs = zip(_numbers(sample), _numbers(other), strict=True)
    return max((float(np.abs(a - b).max()) for a, b in pairs), default=0.0)


def _numbers(sample: Sample) -> list[np.ndarray]:
    """Images, frames, audio and arrays as numbers."""
    media = [*(sample.video or ()), sample.image, None if sample.audio is None else sample.audio.values, sample.array]
    return [np.asarray(item, dtype=np.float32) for item in media if item is not None]


def _rows_of(streamed: Tensor | None, rollout: Rollout, requested: Sequence[int] | Tensor | None) -> Tensor:
    if streamed is not None:
        return streamed.cpu()
    return torch.arange(rollout.shape[0]) if requested is None else torch.as_tensor(requested)
