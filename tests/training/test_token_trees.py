"""Trees of tokens in the step: continued rows, states over rounds, forwards, the gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.token_trees import TokenSegment, segment_tree

from mmgrpo import Trainer
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Branch, Request, Round, Setting, Strategy, fixed, refill
from mmgrpo.maths.strategies.branching import branch_evenly
from mmgrpo.methods.credit.grpo_ma import branch_at_text
from mmgrpo.methods.sampling.cure import branch_at_uncertain
from mmgrpo.methods.sampling.s_grpo_early_reinforcement import exits
from mmgrpo.training.concat_rollouts import RolloutParts, concat_rollouts
from mmgrpo.training.gradients import with_values
from mmgrpo.training.rollout_rounds import Rollouts
from mmgrpo.types import Rollout, Sample
from mmgrpo.values import ENTROPY
from tests.policies.contract import gradients, largest_difference, relative_difference, values
from tests.policies.tiny_language import measured_policy_of, policy_of, prompts_of
from tests.training.test_rounds import even_prompts_differ, gathered

TREE = branch_evenly(every=3, factor=2, levels=2)


def tree_of(policy: LanguagePolicy, strategy: Strategy = TREE) -> Rollouts:
    return gathered(strategy, even_prompts_differ, policy=policy)


def flat(rollout: Rollout) -> Rollout:
    """The same rows, without the record of their shared prefixes."""
    apart = [replace(completion, num_inherited=0) for completion in rollout.trace.completions]
    return replace(rollout, trace=replace(rollout.trace, completions=apart), sampled_by_BT=None)


@contextmanager
def counted(policy: LanguagePolicy) -> Iterator[list[int]]:
    """Tokens that go through the model, padding included."""
    result: list[int] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        result.append(kwargs["input_ids"].numel())

    handle = policy.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield result
    finally:
        handle.remove()


def of_group(result: Rollouts, group: int) -> dict[int, Sample]:
    return {sample.member: sample for sample in result.samples if sample.group == group}


def tokens(sample: Sample) -> list[int]:
    return list(sample.tokens or ())


@pytest.mark.parametrize("settings", [{}, {"top_k": 9}], ids=["whole", "top_k"])
def test_rows_share_prefixes_and_sample_the_rest_by_their_numbers(settings: dict[str, Any]) -> None:
    policy = measured_policy_of("llama", max_new_tokens=9, **settings)
    result, plain = tree_of(policy), tree_of(policy, fixed())
    assert (result.num_rounds, len(result.samples)) == (3, 2 * 8)
    for group in (0, 1):
        rows = of_group(result, group)
        assert [tokens(rows[member]) for member in (0, 1)] == [tokens(row) for row in of_group(plain, group).values()]
        parents = {2: (0, 3), 3: (1, 3), 4: (0, 6), 5: (1, 6), 6: (2, 6), 7: (3, 6)}
        for member, (parent, after) in parents.items():
            assert tokens(rows[member])[:after] == tokens(rows[parent])[:after]
            assert tokens(rows[member])[after:] != tokens(rows[parent])[after:]
    rollout = result.rollout
    assert rollout.on_policy
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 2e-6
    assert rollout.sampled_by_BT is not None
    place = {(sample.group, sample.member): row for row, sample in enumerate(rollout.samples)}
    row, root, second = place[1, 6], place[1, 0], place[1, 2]
    assert rollout.sampled_by_BT[row].tolist() == [*[root] * 3, *[second] * 3, *[row] * 3]
    assert rollout.old_logprob_BT[row, :3].equal(rollout.old_logprob_BT[root, :3])


@pytest.mark.parametrize("settings", [{}, {"top_k": 9}], ids=["whole", "top_k"])
def test_a_text_after_the_shared_prefix_is_forced(settings: dict[str, Any]) -> None:
    policy = measured_policy_of("llama", max_new_tokens=12, **settings)
    result = tree_of(policy, exits(num=2, then="two", before="no such text", room=6))
    put = policy.processor("two", add_special_tokens=False)["input_ids"]
    rollout = result.rollout
    assert len(result.samples) == 2 * 2 * 3
    assert rollout.sampled_by_BT is not None
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 2e-6
    for row, sample in enumerate(result.samples):
        sampled_T = rollout.sampled_by_BT[row] == row
        after = int((~sampled_T).sum())
        root = result.samples[int(rollout.sampled_by_BT[row, 0])]
        assert tokens(sample)[:after] == tokens(root)[:after]
        if sample.member < 2:
            assert rollout.mask_BT[row, : len(tokens(sample))].all()
            continue
        end = after + len(put)
        assert tokens(sample)[after:end] == put
        assert rollout.mask_BT[row, :after].all()
        assert not rollout.mask_BT[row, after:end].any()
        assert rollout.mask_BT[row, end : len(tokens(sample))].all()


def test_equal_states_of_a_group_have_one_id_over_rounds() -> None:
    rollout = tree_of(measured_policy_of("llama", max_new_tokens=9)).rollout
    entropies: dict[int, tuple[int, ...]] = {}
    for row, sample in enumerate(rollout.samples):
        for t in range(len(tokens(sample))):
            state = (sample.group, *tokens(sample)[:t])
            assert entropies.setdefault(int(rollout.state_BT[row, t]), state) == state
    assert len(entropies) == len(set(entropies.values()))
    # a segment from the prompt of each of 2 roots, of 3 states; 4 of the next, 8 of the last: the prompt's is one
    assert len(entropies) == 2 * (2 * 3 + 4 * 3 + 8 * 3 - 1 - 2 - 4)


def test_parts_of_other_rounds_share_states_of_one_prompt() -> None:
    policy = measured_policy_of("llama", max_new_tokens=4)
    result = gathered(refill(), even_prompts_differ, policy=policy).rollout
    assert isinstance(result.trace, RolloutParts)
    first_round = result.trace.rollouts[0]
    bare_B, other = torch.ones(8, dtype=torch.bool), torch.tensor([True] * 4 + [False] * 4)
    twice = concat_rollouts([first_round, first_round], bare_B=bare_B)
    assert twice.state_BT[:4].equal(twice.state_BT[4:])
    apart = concat_rollouts([first_round, first_round], bare_B=other)
    assert not set(apart.state_BT[:4].flatten().tolist()) & set(apart.state_BT[4:].flatten().tolist())


def test_a_segment_is_the_common_part_up_to_a_branch_point() -> None:
    rows = [[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 3, 9], [7, 8, 9], [1, 2]]
    first = TokenSegment((0, 2), 2, 3, (TokenSegment((0,), 3, 4, ()), TokenSegment((2,), 3, 4, ())))
    trunk = TokenSegment((0, 1, 2), 0, 2, (first, TokenSegment((1,), 2, 4, ())))
    result = segment_tree(range(5), rows, [2, 3])
    assert set(result) == {trunk, TokenSegment((3,), 0, 3, ()), TokenSegment((4,), 0, 2, ())}
    assert segment_tree([0, 2], rows, [2, 3]) == (replace(first, start=0),)
    assert segment_tree([0, 1], rows, []) == (TokenSegment((0,), 0, 4, ()), TokenSegment((1,), 0, 4, ()))


@pytest.mark.first_case
@pytest.mark.parametrize("name", ["llama", "qwen2.5-vl", "gemma2", "qwen3.5"])
def test_the_gradient_of_a_tree_equals_that_of_separate_rows(name: str) -> None:
    policy = policy_of(name, max_new_tokens=9)
    rollout = tree_of(policy).rollout
    assert relative_difference(gradients(policy, rollout), gradients(policy, flat(rollout))) < 1e-5
    result, apart = values(policy, rollout), values(policy, flat(rollout))
    assert largest_difference(result, apart, rollout.mask_BT) < 2e-6


def evaluated(policy: LanguagePolicy, rollout: Rollout) -> int:
    with counted(policy) as result, torch.no_grad():
        list(policy.evaluate(rollout))
    return sum(result)


def test_the_update_computes_each_state_once() -> None:
    policy = measured_policy_of("llama", max_new_tokens=9)
    rollout = tree_of(policy).rollout
    lengths = [prompt.length for prompt in rollout.trace.prompts]
    prompts = len(lengths) * max(lengths)  # prompts of two lengths run as one batch
    # after each prompt 2 segments of 3 tokens, 4 of 3, and 8 of 3 whose last token has no successor
    assert evaluated(policy, rollout) == prompts + 2 * (2 * 3 + 4 * 3 + 8 * 2)
    assert evaluated(policy, flat(rollout)) == prompts + 2 * 8 * 8
    assert len({tuple(states) for states in rollout.state_BT.tolist()}) == 16


def test_a_round_computes_shared_prefixes_once_per_branch_point() -> None:
    policy = measured_policy_of("llama", max_new_tokens=9)
    longest = max(prompt.length for prompt in tree_of(policy, fixed()).rollout.trace.prompts)
    with counted(policy) as result:
        tree_of(policy, branch_evenly(every=3, factor=3))
    # 2 prompts, after which 4 rows write 9 tokens; then 4 branch points after 3 tokens, from which 8 rows write 6
    assert sum(result) == 2 * longest + 4 * 8 + 4 * (longest + 3) + 8 * 5


def test_pruned_decisions_are_not_computed() -> None:
    policy = measured_policy_of("llama", max_new_tokens=9)
    rollout = tree_of(policy).rollout
    complete = evaluated(policy, rollout)
    mask_BT = rollout.mask_BT.clone()
    mask_BT[[sample.member == 4 for sample in rollout.samples]] = False  # a leaf of each tree
    assert evaluated(policy, replace(rollout, mask_BT=mask_BT)) == complete - 2 * 2
    mask_BT = rollout.mask_BT.clone()
    mask_BT[:, 6:] = False  # the last segments: the ones before them end the rows, and have no successor
    assert evaluated(policy, replace(rollout, mask_BT=mask_BT)) == complete - 2 * (8 * 2 + 4)


def test_places_of_uncertain_tokens_are_those_of_their_entropies() -> None:
    policy = measured_policy_of("llama", max_new_tokens=9)
    result = tree_of(policy, branch_at_uncertain(num=2))
    rollout = result.rollout
    assert len(result.samples) == 2 * 6
    entropy_BT = rollout.values[ENTROPY]
    for row, sample in enumerate(rollout.samples[:4]):
        most = [t for t in entropy_BT[row].argsort(descending=True).tolist() if t > 0][:2]
        members = [2 + 2 * sample.member + order for order in range(2)]
        for member, after in zip(members, most, strict=True):
            other = of_group(result, sample.group)[member]
            assert tokens(other)[:after] == tokens(sample)[:after]
            assert tokens(other)[after:] != tokens(sample)[after:]
    bare = replace(rollout, values={})
    entropies = with_values(policy, bare, [ENTROPY]).values[ENTROPY]
    assert largest_difference(entropies, entropy_BT, rollout.mask_BT) < 1e-5  # of what was taken over too


def test_rows_continue_after_a_text() -> None:
    policy = measured_policy_of("llama", max_new_tokens=9)
    result = tree_of(policy, branch_at_text(pattern="e", factor=3))
    roots = [sample for sample in result.samples if sample.member < 2 and "e" in (sample.text or "")[:-3]]
    assert roots
    for root in roots:
        after = 1 + next(t for t, end in enumerate(policy.text_offsets(root)) if end > (root.text or "").index("e"))
        members = (2 + 2 * root.member, 3 + 2 * root.member)
        assert all(tokens(of_group(result, root.group)[member])[:after] == tokens(root)[:after] for member in members)


def asking(further: Request) -> Strategy:
    def ask(rounds: Sequence[Round], setting: Setting) -> Sequence[Request]:
        return ([further] if len(rounds) == 1 else ()) if rounds else setting.groups(0, 2)

    return Strategy(ask=ask, looks_back=True)


def test_invalid_continuations_raise() -> None:
    with pytest.raises(ConfigError, match="member 7 of prompt 0, which no earlier round has sampled"):
        gathered(asking(Request(prompt=0, members=(2,), continues=Branch(7, 1))), even_prompts_differ)
    with pytest.raises(ConfigError, match="has 4: the last one to continue from is 3"):
        gathered(asking(Request(prompt=0, members=(2,), continues=Branch(0, 4))), even_prompts_differ)


def test_a_strategy_without_branches_does_not_change_the_run() -> None:
    policy = measured_policy_of("llama", max_new_tokens=9)
    result, plain = tree_of(policy, branch_evenly(every=20)), tree_of(policy, fixed())
    assert result.rollout.sampled_by_BT is None
    for name in ("old_logprob_BT", "mask_BT", "state_BT", "segment_BT"):
        assert torch.equal(getattr(result.rollout, name), getattr(plain.rollout, name))
    ours, theirs = (list(policy.evaluate(rollouts.rollout)) for rollouts in (result, plain))
    assert [part.logprob_BT.tolist() for part in ours] == [part.logprob_BT.tolist() for part in theirs]


def run(output: Path, **changes: Any) -> Trainer:
    advantage = {"estimators": ["siblings", "along_segments"], "filters": ["each_decision_once"]}
    strategy = {"name": "branch_evenly", "every": 2, "levels": 2}
    values = {
        "output": str(output),
        "steps": 4,
        "rollout": {"prompts_per_step": 2, "group_size": 2, "strategy": strategy},
        "advantage": advantage,
        "update": {"optimizer": {"lr": 1e-3}},
        "checkpoint": {"every": 2},
        "runtime": {"device": "cpu"},
    }
    trainer = Trainer(
        measured_policy_of("llama", max_new_tokens=6),
        {"even": even_prompts_differ},
        prompts_of("llama"),
        values | changes.pop("changes", {}),
        **changes,
    )
    trainer.train()
    return trainer


@pytest.mark.nightly
def test_a_resumed_run_grows_the_trees_of_the_uninterrupted_one(tmp_path: Path) -> None:
    uninterrupted = run(tmp_path / "whole")
    half = run(tmp_path / "half", changes={"steps": 2})
    resumed = run(tmp_path / "half", resume=half.folder.path)
    for parameter, other in zip(resumed.policy.trainable, uninterrupted.policy.trainable, strict=True):
        assert torch.equal(parameter, other)
    start = measured_policy_of("llama", max_new_tokens=6)
    moved = [
        not torch.equal(parameter, other)
        for parameter, other in zip(uninterrupted.policy.trainable, start.trainable, strict=True)
    ]
    assert any(moved)
