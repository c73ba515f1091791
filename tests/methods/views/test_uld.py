"""ULD: the numbers of TRL's ``ULDLoss``, by hand, and updates with a teacher that has another tokenizer.

Axes: B rows, T tokens, U tokens of the teacher, M tokens of all rows, V and W vocabularies.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmgrpo.policies.language.retokenized import common_starts
from torch import Tensor

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import load_config
from mmgrpo.errors import ConfigError
from mmgrpo.maths.divergences import sorted_distance
from mmgrpo.scoring import NamedReward
from mmgrpo.training.build import build_views
from mmgrpo.training.concat_rollouts import RolloutParts, concat_rollouts
from mmgrpo.training.trainer import Trainer
from mmgrpo.training.views import retokenize
from mmgrpo.types import Prompt
from mmgrpo.values import mask_of_view
from mmgrpo.values import sorted_distance as distance_value
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss
from tests.methods.views.test_gkd import plain_logits, replace_settings, update_of, views_of
from tests.policies.contract import move
from tests.policies.tiny_language import measured_policy_of, prompts_of

HERE = "tests.methods.views.test_uld"


def teacher() -> tuple[Any, Any]:
    """A language model of another family, with another tokenizer than ``llama``."""
    policy = measured_policy_of("qwen2")
    move(policy.trainable)
    return policy.model, policy.processor


def uld(**changes: Any) -> Any:
    policy = {"name": "language", "model": f"python:{HERE}:teacher", "dtype": "float32"}
    return load_config("methods/uld", {"objective.views.teacher.policy": policy, **changes})


def logits_of(seed: int, V: int) -> Tensor:
    return 2 * torch.randn(6, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_by_hand() -> None:
    """p (1/2, 1/4, 1/4), q (1/8, 7/8): |1/2 - 7/8| + |1/4 - 1/8| + |1/4 - 0| = 3/4, whatever the order."""
    p_1V, q_1W = torch.tensor([[0.25, 0.5, 0.25]]).log(), torch.tensor([[0.125, 0.875]]).log()
    assert float(sorted_distance(p_1V, q_1W)) == pytest.approx(0.75)
    assert float(sorted_distance(q_1W, p_1V)) == pytest.approx(0.75)
    assert float(sorted_distance(p_1V, p_1V.flip(-1))) == 0.0


def test_loss_of_the_method() -> None:
    """The mean over the two of three tokens at which the teacher begins a token."""
    values = {distance_value("teacher"): [[0.2, 0.4], [0.9, 0.0]], mask_of_view("teacher"): [[1.0, 0.0], [1.0, 1.0]]}
    assert_loss("uld", Step(reward=ONE_OF_TWO, lengths=[2, 1], values=values), (0.2 + 0.9) / 3)


@pytest.mark.nightly
def test_value_and_gradient_are_those_of_trl() -> None:
    """A text of six tokens that both tokenizers divide equally."""
    from trl.experimental.gold.gold_trainer import ULDLoss

    settings: dict[str, Any] = {
        "uld_crossentropy_weight": 0.0,
        "uld_distillation_weight": 1.0,
        "uld_student_temperature": 0.9,
    }
    settings |= {"uld_teacher_temperature": 0.9, "uld_skip_student_eos": False, "uld_skip_teacher_eos": False}
    settings |= {"use_extended_uld": False, "uld_token_merge_strategy": "observed"}
    config: Any = SimpleNamespace(**settings)
    loss_of = ULDLoss(config)
    ours_MV, theirs_MV, teacher_MW = (
        logits_of(0, 11).requires_grad_(),
        logits_of(0, 11).requires_grad_(),
        logits_of(1, 9),
    )
    labels_1M = torch.arange(6)[None]
    expected = loss_of(theirs_MV[None], teacher_MW[None], labels_1M, labels_1M, labels_1M, labels_1M)
    distance = sorted_distance(ours_MV / 0.9, teacher_MW / 0.9).mean()
    torch.testing.assert_close(distance, expected)
    expected.backward()
    distance.backward()
    torch.testing.assert_close(ours_MV.grad, theirs_MV.grad)


def test_common_starts_by_hand() -> None:
    """ "a red fox": a| red| fox and the end token against a| r|ed fox; then a character of two tokens."""
    assert common_starts([1, 5, 9, 9], [1, 3, 9], 9) == [0, 1, -1, -1]
    assert common_starts([1, 2, 3], [1, 1, 2, 3], 3) == [0, 2, 3]  # the second and third are one character together
    assert common_starts([1, 1, 2], [1, 2], 2) == [0, -1, 1]  # a special token without text
    assert common_starts([], [1], 1) == []


@pytest.mark.nightly
def test_update_is_that_of_two_forwards() -> None:
    """Rows of unequal lengths and prompts; a few rows of logits at once give the same gradient."""
    policy = measured_policy_of("llama", max_new_tokens=20)
    rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=1)
    config = uld()
    views = views_of(config, policy, rollout)
    loss, gradient = update_of(policy, rollout, config, views)
    loss_of_parts, gradient_of_parts = update_of(replace_settings(policy, head_bytes=1), rollout, config, views)
    other, total, compared = measured_policy_of("qwen2"), torch.zeros(()), 0
    move(other.trainable)
    for row, sample in enumerate(rollout.samples):
        text, ours, theirs = sample.text or "", list(policy.text_offsets(sample)), []
        ids_U = other.processor(text, add_special_tokens=False)["input_ids"]
        theirs = [len(other.processor.decode(ids_U[: n + 1])) for n in range(len(ids_U))]
        prompt_ids = other._encoder(sample.prompt).ids_P
        with torch.no_grad():
            ids_1L = torch.cat([prompt_ids, torch.tensor(ids_U, dtype=torch.long)])[None]
            logits_UW = other.model(input_ids=ids_1L, use_cache=False).logits[0, len(prompt_ids) - 1 :]
            teacher_UW = policy._sampling.tempered(logits_UW)
        student_TV = plain_logits(policy.model, policy, rollout, row)
        index_T = common_starts(ours, theirs, len(text))
        pairs = [(t, u) for t, u in enumerate(index_T) if u >= 0 and bool(rollout.mask_BT[row, t])]
        compared += len(pairs)
        for t, u in pairs:
            ours_begin, theirs_begin = ([0, *ends][n] for ends, n in ((ours, t), (theirs, u)))
            assert text[:ours_begin] == text[:theirs_begin]
            total = total + sorted_distance(student_TV[t : t + 1], teacher_UW[u : u + 1])[0]
    num_tokens = int(rollout.mask_BT.sum())
    assert 4 < compared < num_tokens
    total = total / num_tokens
    assert loss == pytest.approx(float(total.detach()), rel=1e-5)
    assert loss_of_parts == pytest.approx(loss, rel=1e-5)
    for ours_grad, parts, expected in zip(
        gradient, gradient_of_parts, torch.autograd.grad(total, policy.trainable), strict=True
    ):
        torch.testing.assert_close(ours_grad, expected, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(parts, ours_grad, rtol=1e-4, atol=1e-7)


def test_joined_rollouts_are_retokenized_part_by_part() -> None:
    """The parts have rows of other lengths; their matrices are padded."""
    policy = measured_policy_of("llama", max_new_tokens=20)
    parts = [policy.rollout([prompt], group_size=2, seed=1) for prompt in prompts_of("llama")[:2]]
    config = uld()
    views = build_views(Algorithm.of(config), policy)
    view = views["teacher"]
    assert view.retokenizes
    teacher_policy: Any = view.policy
    prompts_of_parts = [[sample.prompt for sample in part.samples] for part in parts]
    separate = [
        retokenize(teacher_policy, policy, part, prompts) for part, prompts in zip(parts, prompts_of_parts, strict=True)
    ]
    joined = concat_rollouts(parts)
    assert isinstance(joined.trace, RolloutParts)
    together = retokenize(teacher_policy, policy, joined, [*prompts_of_parts[0], *prompts_of_parts[1]])
    for number, part in enumerate(separate):
        T = part.shape[1]
        assert torch.equal(together.mask_BT[2 * number : 2 * number + 2, :T], part.mask_BT)
        assert not bool(together.mask_BT[2 * number : 2 * number + 2, T:].any())
        assert torch.equal(together.trace.rollouts[number].trace.index_BT, part.trace.index_BT)


def test_a_policy_without_text_is_an_error() -> None:
    policy = measured_policy_of("llama", max_new_tokens=4)
    rollout = policy.rollout(prompts_of("llama")[:1], group_size=1, seed=1)
    untold: Any = object()
    with pytest.raises(ConfigError, match="object does not state which decisions wrote which characters"):
        retokenize(policy, untold, rollout, [sample.prompt for sample in rollout.samples])


def test_divergence_of_tokens_needs_their_tokenizer() -> None:
    """A view of which a term reads tokens is not retokenized, so that the error about its tokenizer stays."""
    policy = measured_policy_of("llama", max_new_tokens=20)
    rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=1)
    terms = [{"name": "sorted_distance", "view": "teacher"}, {"name": "generalized_jsd", "view": "teacher"}]
    config = uld(**{"objective.terms": terms})
    with pytest.raises(ConfigError, match="give it the tokenizer of the trained policy"):
        update_of(policy, rollout, config, views_of(config, policy, rollout))


@pytest.mark.nightly
def test_student_nears_its_teacher(tmp_path: Path) -> None:
    """On the answers of rows, whose texts stay the same."""
    strategy = {"rollout.strategy": {"name": "student_or_answer", "fraction": 0.0}}
    small = {"steps": 12, "rollout.prompts_per_step": 2, "update.optimizer.lr": 1e-3, "output": str(tmp_path)}
    prompts = [Prompt(prompt.text, columns={"solution": "a red fox"}) for prompt in prompts_of("llama")]
    policy = measured_policy_of("llama", max_new_tokens=8, temperature=1.0)
    reward = NamedReward("none", _nothing, weight=0.0)
    folder = Trainer(policy, [reward], prompts, uld(**strategy, **small)).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    means = [line["policy/sorted_distance@teacher_mean"] for line in lines]
    assert means[-1] < 0.6 * means[0]


def _nothing(samples: Sequence[Any]) -> list[float]:
    return [0.0] * len(samples)
