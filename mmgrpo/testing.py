"""The laws every policy keeps, as checks that take any of them.

A test module wraps its policy in a ``Subject`` and calls the checks, all of which are ``LAWS``; each builds the
policies it needs, so that none sees what another has trained. A check that fails raises AssertionError.
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
from mmgrpo.policy import Policy, SupportsOffPolicyScoring, SupportsPromptOverride, SupportsWindows
from mmgrpo.types import Origin, Plan, Prompt, Rollout, Sample

SEED = 11
GROUP_SIZE = 2
GRADIENT_ROUNDING = 1e-4  # what another batch composition may change in a float32 gradient, relative to its norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A policy under test.

    Attributes:
        make: batch -> the policy, with the same weights each time, that runs at most so many rows at once.
        parameters: policy -> every parameter of the model, trained or not.
        prompts: at least two.
        gap: largest |log-probability now - at rollout| allowed where the batches are the rollout's own.
        rounding: largest change of a log-probability by another composition of the batches.
        min_trained_frac: least share of the trainable parameters that a gradient has to reach.
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
        """The rollout that the checks look at."""
        return policy.rollout(self.prompts, group_size=GROUP_SIZE, seed=SEED, plan=plan)


def check_on_policy_gap(subject: Subject, plan: Plan | None = None) -> None:
    """The log-probabilities of the rollout are those that evaluation finds with the same weights."""
    policy = subject.make(subject.rows)
    rollout = subject.rollout(policy, plan)
    values_BT = values(policy, rollout)
    assert rollout.mask_BT.any()
    assert largest_difference(values_BT, rollout.old_logprob_BT, rollout.mask_BT) <= subject.gap
    one_by_one_BT = values(subject.make(1), rollout)
    assert largest_difference(one_by_one_BT, rollout.old_logprob_BT, rollout.mask_BT) < subject.rounding


def check_every_decision_once(subject: Subject) -> None:
    """Each unmasked decision of the asked-for rows appears in exactly one slice."""
    policy = subject.make(2)
    rollout = subject.rollout(policy)
    B, T = rollout.shape
    dropped_BT = torch.zeros(B, T, dtype=torch.bool)
    dropped_BT[1, :] = True
    dropped_BT[0, int(rollout.mask_BT[0].nonzero()[0])] = True
    rollout = rollout.keep(~dropped_BT)
    assert torch.equal(counts(policy, rollout), rollout.mask_BT.int())
    chosen = [B - 1, 0]
    expected_BT = torch.zeros(B, T, dtype=torch.int32)
    expected_BT[chosen] = rollout.mask_BT[chosen].int()
    assert torch.equal(counts(policy, rollout, chosen), expected_BT)
    assert torch.equal(counts(policy, rollout, torch.tensor(chosen)), expected_BT)


def check_rows_and_batches(subject: Subject) -> None:
    """Neither the rows asked for nor the size of the batches changes a value or a gradient, but for rounding."""
    wide, narrow = subject.make(subject.rows), subject.make(1)
    rollout = subject.rollout(wide)
    move(wide.trainable)
    move(narrow.trainable)
    whole_BT, single_BT = values(wide, rollout), values(narrow, rollout)
    assert largest_difference(whole_BT, single_BT, rollout.mask_BT) < subject.rounding
    some = [rollout.shape[0] - 1, 1]
    rest = [b for b in range(rollout.shape[0]) if b not in some]
    some_BT = values(wide, rollout, some)
    assert largest_difference(some_BT[some], whole_BT[some], rollout.mask_BT[some]) < subject.rounding
    whole = gradients(wide, rollout)
    assert relative_difference(gradients(narrow, rollout), whole) < GRADIENT_ROUNDING
    parts = zip(gradients(wide, rollout, some), gradients(wide, rollout, rest), strict=True)
    assert relative_difference([first + second for first, second in parts], whole) < GRADIENT_ROUNDING


def check_seeds(subject: Subject) -> None:
    """A sample is a function of seed, prompt id and member, however it is batched; each of the three matters."""
    policy = subject.make(subject.rows)
    first, again = subject.rollout(policy), subject.rollout(policy)
    assert sample_difference(first.samples, again.samples) == 0
    assert torch.equal(first.old_logprob_BT, again.old_logprob_BT)
    alone = subject.rollout(subject.make(1))
    assert sample_difference(first.samples, alone.samples) <= 1  # a level of 255, where rounding tips it
    assert largest_difference(first.old_logprob_BT, alone.old_logprob_BT, first.mask_BT) < subject.rounding
    other_seed = policy.rollout(subject.prompts, group_size=GROUP_SIZE, seed=SEED + 1)
    for old, new in zip(first.samples, other_seed.samples, strict=True):
        assert sample_difference([old], [new]) > 0
    for members in (first.samples[b : b + GROUP_SIZE] for b in range(0, subject.rows, GROUP_SIZE)):
        assert sample_difference(members[:1], members[1:2]) > 0


def check_prompt_ids(subject: Subject) -> None:
    """The ids of the plan, not the places in the list, key the noise and name the groups.

    A group is a batch both times, as what another batch rounds otherwise may tip the choice of a token.
    """
    policy = subject.make(GROUP_SIZE)
    numbered = policy.rollout(subject.prompts, group_size=GROUP_SIZE, seed=SEED, plan=Plan(prompt_ids=(5, 9)))
    assert numbered.prompt_index_B.tolist() == [5] * GROUP_SIZE + [9] * GROUP_SIZE
    assert [sample.member for sample in numbered.samples] == list(range(GROUP_SIZE)) * 2
    last = policy.rollout(subject.prompts[1:2], group_size=GROUP_SIZE, seed=SEED, plan=Plan(prompt_ids=(9,)))
    assert sample_difference(numbered.samples[GROUP_SIZE:], last.samples) <= 1
    assert (
        largest_difference(numbered.old_logprob_BT[GROUP_SIZE:], last.old_logprob_BT, last.mask_BT) < subject.rounding
    )
    same_prompt = [subject.prompts[0]] * 2
    twice = policy.rollout(same_prompt, group_size=1, seed=SEED, plan=Plan(prompt_ids=(5, 9)))
    assert sample_difference(twice.samples[:1], twice.samples[1:]) > 0


def check_emitted_samples(subject: Subject) -> None:
    """Samples are handed over while the rest is drawn: each once, as the objects that the rollout holds."""
    for stochastic in (None, ()):  # drawn at random, and without noise
        portions: list[Sequence[Sample]] = []
        rollout = subject.rollout(subject.make(1), Plan(stochastic=stochastic, on_samples=portions.append))
        handed_over = [sample for portion in portions for sample in portion]
        assert len(portions) > 1
        assert sorted(map(id, handed_over)) == sorted(map(id, rollout.samples))


def check_reference(subject: Subject) -> None:
    """The reference is the untrained policy, and asking for it leaves the trained one as it was."""
    policy = subject.make(subject.rows)
    rollout = subject.rollout(policy)
    untrained_BT = values(policy, rollout)
    with policy.reference():  # a full fine-tune copies its weights when first asked
        assert torch.equal(values(policy, rollout), untrained_BT)
    flags = [p.requires_grad for p in subject.parameters(policy)]
    move(policy.trainable)
    trained_BT = values(policy, rollout)
    assert largest_difference(trained_BT, untrained_BT, rollout.mask_BT) > 0
    with policy.reference():
        assert torch.equal(values(policy, rollout), untrained_BT)
    assert torch.equal(values(policy, rollout), trained_BT)
    assert [p.requires_grad for p in subject.parameters(policy)] == flags


def check_save_and_load(subject: Subject, directory: Path | None = None) -> None:
    """What is saved and loaded into an untrained policy is the trained one, bit for bit.

    Args:
        subject: the policy.
        directory: where to, empty; None: a folder that is gone afterwards.
    """
    if directory is None:
        with TemporaryDirectory() as made:
            return check_save_and_load(subject, Path(made))
    policy, other = subject.make(subject.rows), subject.make(subject.rows)
    rollout = subject.rollout(policy)
    untrained_BT = values(other, rollout)
    move(policy.trainable)
    trained_BT = values(policy, rollout)
    policy.save(directory)
    other.load(directory)
    assert largest_difference(trained_BT, untrained_BT, rollout.mask_BT) > 0
    assert torch.equal(values(other, rollout), trained_BT)
    for mine, loaded in zip(policy.trainable, other.trainable, strict=True):
        assert torch.equal(mine, loaded)


def check_gradients(subject: Subject) -> None:
    """Gradients are finite, not zero, and on what is trained alone."""
    policy = subject.make(subject.rows)
    rollout = subject.rollout(policy)
    move(policy.trainable)  # an adapter that adds nothing yet passes no gradient to its first factor
    found = gradients(policy, rollout)
    assert all(torch.isfinite(gradient).all() for gradient in found)
    reached = sum(bool(gradient.any()) for gradient in found)
    assert reached >= subject.min_trained_frac * len(found)
    trained = {id(p) for p in policy.trainable}
    assert all(p.grad is None for p in subject.parameters(policy) if id(p) not in trained)
    assert all(p.requires_grad == (id(p) in trained) for p in subject.parameters(policy))


def check_replayed_rows(subject: Subject) -> None:
    """Rows that are read again, behind the prompt that they had, have a ratio of 1 as long as no weight has changed.

    Those of every decision, and where the policy takes windows those of the last one. Policies that do not read are
    left out.
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


def check_own_prompts(subject: Subject) -> None:
    """Decisions evaluated behind the prompts that they were sampled behind are as likely as they were.

    Policies without ``SupportsPromptOverride`` are left out.
    """
    policy = subject.make(subject.rows)
    if not isinstance(policy, SupportsPromptOverride):
        return
    rollout = subject.rollout(policy)
    own = policy.override_prompts(rollout, [sample.prompt for sample in rollout.samples])
    assert torch.equal(own.mask_BT, rollout.mask_BT)
    largest = largest_difference(values(policy, own), rollout.old_logprob_BT, rollout.mask_BT)
    assert largest <= max(subject.gap, subject.rounding)


def check_ratio_of_read_rows(subject: Subject, policy: Policy, rollout: Rollout) -> None:
    """The rows of a rollout, read under another seed in another order, are of the same decisions at a ratio of 1.

    What is no token has no log-probabilities that would be read: its decisions are new, and those of the policy now.
    """
    assert isinstance(policy, SupportsOffPolicyScoring)
    given = [rollout.off_policy_sample(row, Origin.REPLAY) for row in reversed(range(subject.rows))]
    made_of_tokens = all(sample.tokens is not None for sample in rollout.samples)
    if not made_of_tokens:
        given = [replace(one, old_logprob_T=None) for one in given]
    try:
        read = policy.read(given, seed=SEED + 1)
    except PolicyError:
        if made_of_tokens:
            raise
        return  # a pipeline whose samples cannot be noised again, which it says
    gap = subject.gap if made_of_tokens else 0.0
    assert read.mask_BT.any()
    assert largest_difference(values(policy, read), read.old_logprob_BT, read.mask_BT) <= max(gap, subject.rounding)
    if made_of_tokens:
        shown_BT = rollout.mask_BT.flip(0)
        assert torch.equal(read.mask_BT, shown_BT), "read rows train other decisions than were sampled"
        old_BT = rollout.old_logprob_BT.flip(0)
        assert largest_difference(read.old_logprob_BT, old_BT, shown_BT) == 0
        again = policy.read([read.off_policy_sample(row, Origin.REPLAY) for row in range(subject.rows)], seed=SEED + 2)
        assert torch.equal(again.mask_BT, read.mask_BT)
        assert largest_difference(values(policy, again), read.old_logprob_BT, read.mask_BT) <= max(
            gap, subject.rounding
        )


LAWS: tuple[Callable[[Subject], None], ...] = (
    check_on_policy_gap,
    check_every_decision_once,
    check_rows_and_batches,
    check_seeds,
    check_prompt_ids,
    check_emitted_samples,
    check_reference,
    check_save_and_load,
    check_gradients,
    check_replayed_rows,
    check_own_prompts,
)
"""What every policy is held to, ours and others'."""


def values(policy: Policy, rollout: Rollout, rows: Sequence[int] | Tensor | None = None) -> Tensor:
    """(B, T) log-probabilities under the weights of now; zero at decisions that were not streamed."""
    found_BT = torch.zeros(rollout.shape)
    with torch.no_grad():
        for evaluation in policy.evaluate(rollout, rows):
            index = _rows_of(evaluation.rows, rollout, rows)
            found_BT[index[:, None], torch.as_tensor(evaluation.columns)] = evaluation.logprob_BT.cpu()
    return found_BT * rollout.mask_BT


def counts(policy: Policy, rollout: Rollout, rows: Sequence[int] | Tensor | None = None) -> Tensor:
    """(B, T) how often each unmasked decision was streamed."""
    found_BT = torch.zeros(rollout.shape, dtype=torch.int32)
    with torch.no_grad():
        for evaluation in policy.evaluate(rollout, rows):
            index = _rows_of(evaluation.rows, rollout, rows)
            cells = index[:, None], torch.as_tensor(evaluation.columns)
            found_BT[cells] += torch.isfinite(evaluation.logprob_BT.cpu()).int()
    return found_BT * rollout.mask_BT


def gradients(policy: Policy, rollout: Rollout, rows: Sequence[int] | Tensor | None = None) -> list[Tensor]:
    """Gradient of a fixed random weighting of the log-probabilities, slice by slice; the gradients are cleared."""
    weight_BT = torch.randn(rollout.shape, generator=torch.Generator().manual_seed(3)) * rollout.mask_BT
    for parameter in policy.trainable:
        parameter.grad = None
    for evaluation in policy.evaluate(rollout, rows):
        index = _rows_of(evaluation.rows, rollout, rows)
        weight = weight_BT[index[:, None], torch.as_tensor(evaluation.columns)].to(evaluation.logprob_BT)
        backward((weight * evaluation.logprob_BT).sum())
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.trainable]
    for parameter in policy.trainable:
        parameter.grad = None
    return found


@torch.no_grad()
def move(parameters: Sequence[nn.Parameter], *, scale: float = 0.05, seed: int = 5) -> None:
    """Changes every parameter a little, the same way each time; what is zero by construction as well."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter))


def largest_difference(values_BT: Tensor, others_BT: Tensor, mask_BT: Tensor) -> float:
    """Over the decisions of a mask; in units of the value where that is larger than 1."""
    return float(((values_BT - others_BT) / others_BT.abs().clamp(min=1))[mask_BT].abs().max())


def relative_difference(gradient: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Of two gradients of all parameters: norm of the difference over the norm."""
    flat, other_flat = (torch.cat([part.flatten() for part in parts]) for parts in (gradient, other))
    return float((flat - other_flat).norm() / other_flat.norm())


def sample_difference(samples: Sequence[Sample], others: Sequence[Sample]) -> float:
    """0 for samples that say and show the same; else the largest difference of a pixel or number, infinity of texts."""
    return max(_difference(a, b) for a, b in zip(samples, others, strict=True))


def _difference(sample: Sample, other: Sample) -> float:
    if (sample.text, sample.tokens) != (other.text, other.tokens):
        return float("inf")
    pairs = zip(_numbers(sample), _numbers(other), strict=True)
    return max((float(np.abs(a - b).max()) for a, b in pairs), default=0.0)


def _numbers(sample: Sample) -> list[np.ndarray]:
    """Pictures, frames, sounds and arrays alike."""
    made = [*(sample.video or ()), sample.image, None if sample.audio is None else sample.audio.values, sample.array]
    return [np.asarray(one, dtype=np.float32) for one in made if one is not None]


def _rows_of(found: Tensor | None, rollout: Rollout, asked: Sequence[int] | Tensor | None) -> Tensor:
    if found is not None:
        return found.cpu()
    return torch.arange(rollout.shape[0]) if asked is None else torch.as_tensor(asked)
