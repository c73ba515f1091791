"""A model that writes and draws as one policy: rows of both kinds in one rollout, each as its own policy has it."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmgrpo.policies.image_tokens import ImageTokensPolicy
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.unified import UnifiedPolicy
from PIL import Image
from torch import nn

import mmgrpo
from mmgrpo.errors import ConfigError
from mmgrpo.policy import Policy
from mmgrpo.types import Example, OffPolicySample, Plan, Prompt, Sample
from mmgrpo.values import ENTROPY, from_reference
from tests.policies import contract
from tests.policies.contract import Subject, largest_difference, values
from tests.tiny.image_tokens import make

WRITE: dict[str, Any] = {"max_new_tokens": 5, "temperature": 3.0}
DRAW: dict[str, Any] = {"guidance_scale": 3.0, "temperature": 3.0}
LORA: dict[str, Any] = {"rank": 2, "alpha": 2.0}
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8))
PROMPTS = [Prompt("a red fox", columns={"draw": True}), Prompt("what is shown <image>", images=[PICTURE])]


def parts_of() -> tuple[Any, Any]:
    model, processor, _ = make("janus")
    return copy.deepcopy(model), copy.deepcopy(processor)


def policy_of(*, batch: int = 8, lora: dict[str, Any] | None = None, **settings: Any) -> UnifiedPolicy:
    """Janus, with the same weights each time."""
    size: dict[str, Any] = {"rollout_batch": batch} | ({"update_tokens": 1} if batch == 1 else {})
    options = {"write": WRITE | size, "draw": DRAW | size, "lora": lora, **settings}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return UnifiedPolicy(*parts_of(), options)


def parameters_of(policy: Policy) -> list[nn.Parameter]:
    assert isinstance(policy, UnifiedPolicy)
    return list(policy.draw.model.parameters())


SUBJECT = Subject(
    make=lambda batch: policy_of(batch=batch, lora=LORA),
    parameters=parameters_of,
    prompts=PROMPTS[::-1],  # the longer rows last
    gap=4e-6,
    rounding=8e-6,
)


@pytest.mark.nightly
def test_the_laws(tmp_path: Path) -> None:
    contract.check_on_policy_gap(SUBJECT)
    contract.check_every_decision_once(SUBJECT)
    contract.check_gradients(SUBJECT)
    contract.check_prompt_ids(SUBJECT)
    contract.check_reference(SUBJECT)
    contract.check_save_and_load(SUBJECT, tmp_path)
    contract.check_replayed_rows(SUBJECT)
    contract.check_prompt_independence(SUBJECT)


@pytest.mark.nightly
def test_the_other_laws(tmp_path: Path) -> None:
    contract.check_rows_and_batches(SUBJECT)
    contract.check_seeds(SUBJECT)
    contract.check_emitted_samples(SUBJECT)
    full = replace(SUBJECT, make=lambda batch: policy_of(batch=batch))
    contract.check_gradients(full)
    contract.check_reference(full)
    contract.check_save_and_load(full, tmp_path)


@pytest.mark.nightly
def test_rows_are_those_of_the_policies_alone() -> None:
    policy = policy_of()
    rollout = policy.rollout([PROMPTS[1], PROMPTS[0]], group_size=2, seed=4, plan=Plan(prompt_ids=(7, 3)))
    written, images = rollout.samples[:2], rollout.samples[2:]
    assert all(sample.text is not None and sample.image is None for sample in written)
    assert all(sample.image is not None and sample.text is None for sample in images)
    writer = LanguagePolicy(*parts_of(), WRITE)
    drawer = ImageTokensPolicy(*parts_of(), DRAW)
    alone = writer.rollout([PROMPTS[1]], group_size=2, seed=4, plan=Plan(prompt_ids=(7,)))
    drawing = drawer.rollout([PROMPTS[0]], group_size=2, seed=4, plan=Plan(prompt_ids=(3,)))
    assert [s.tokens for s in written] == [s.tokens for s in alone.samples]
    assert [s.tokens for s in images] == [s.tokens for s in drawing.samples]
    assert rollout.shape == (4, 16)
    width = alone.shape[1]
    torch.testing.assert_close(rollout.old_logprob_BT[:2, :width], alone.old_logprob_BT)
    torch.testing.assert_close(rollout.old_logprob_BT[2:], drawing.old_logprob_BT)
    assert not rollout.mask_BT[:2, width:].any()
    states = [set(rollout.state_BT[rows][rollout.mask_BT[rows]].tolist()) for rows in (slice(0, 2), slice(2, 4))]
    assert not states[0] & states[1]
    with torch.no_grad():
        for part in policy.evaluate(rollout, values=(ENTROPY, from_reference("k3"))):
            assert bool((part.values[ENTROPY][rollout.mask_BT[part.rows][:, list(part.columns)]] > 0).all())
            assert float(part.values[from_reference("k3")].abs().max()) < 1e-6
    read = policy.read([OffPolicySample(sample=sample) for sample in rollout.samples], seed=0)
    assert largest_difference(read.old_logprob_BT, values(policy, read), read.mask_BT) < 1e-6
    assert [s.tokens for s in read.samples] == [s.tokens for s in rollout.samples]


@pytest.mark.nightly
def test_the_same_decisions_with_other_prompts() -> None:
    policy = policy_of()
    rollout = policy.rollout(PROMPTS, group_size=1, seed=4)
    prompts = [Prompt("two squares", columns={"draw": True}), Prompt("what is the table")]
    overridden_BT = values(policy, policy.override_prompts(rollout, prompts))
    alone = (ImageTokensPolicy(*parts_of(), DRAW), LanguagePolicy(*parts_of(), WRITE))
    for row, expert in enumerate(alone):
        read = expert.read([OffPolicySample(sample=replace(rollout.samples[row], group=0))], seed=0)
        assert read.shape[1] == int(rollout.mask_BT[row].sum())
        expert_BT = values(expert, expert.override_prompts(read, [prompts[row]]))
        torch.testing.assert_close(overridden_BT[row, : read.shape[1]], expert_BT[0], atol=1e-5, rtol=1e-5)


def test_examples_of_both_kinds_are_a_mean_over_all_their_tokens() -> None:
    text = Example(prompt=PROMPTS[1], text="two blue")
    image = Example(prompt=PROMPTS[0], image=PICTURE)
    both = policy_of().supervised_loss([image, text], seeds=(1, 2))
    written = LanguagePolicy(*parts_of(), WRITE).supervised_loss([text], seeds=(2,))
    images = ImageTokensPolicy(*parts_of(), DRAW).supervised_loss([image], seeds=(1,))
    assert both.num_terms == written.num_terms + images.num_terms
    total = written.mean * written.num_terms + images.mean * images.num_terms
    torch.testing.assert_close(both.mean, total / both.num_terms)


@pytest.mark.nightly
def test_one_run_trains_both_kinds(tmp_path: Path) -> None:
    def long(samples: list[Sample]) -> list[float | None]:
        return [None if sample.text is None else float(len(sample.tokens or ())) for sample in samples]

    def low(samples: list[Sample]) -> list[float | None]:
        return [None if s.image is None else sum(code < 12 for code in s.tokens or ()) / 16 for s in samples]

    config = {"steps": 2, "rollout": {"prompts_per_step": 2, "group_size": 4}, "update": {"optimizer": {"lr": 1e-3}}}
    policy = policy_of()
    before = [parameter.clone() for parameter in policy.trainable]
    mmgrpo.Trainer(policy, [long, low], PROMPTS, {**config, "output": str(tmp_path)}).train()
    names = {
        name: n
        for n, (name, p) in enumerate((n, p) for n, p in policy.draw.model.named_parameters() if p.requires_grad)
    }
    moved = {name for name, n in names.items() if not torch.equal(before[n], policy.trainable[n])}
    assert "lm_head.weight" in moved  # by the text
    assert "model.generation_head.vision_head.weight" in moved  # by the images
    assert not any("vqmodel" in name for name in names)


def test_unsupported_settings_raise() -> None:
    with pytest.raises(ValueError, match="lora applies to both kinds"):
        policy_of(draw={"lora": {"rank": 2}})
    with pytest.raises(ValueError, match="max_tokens"):
        policy_of(write={"max_tokens": 3})
    with pytest.raises(ConfigError, match="must be true"):
        policy_of().rollout([Prompt("a", columns={"draw": "yes"})], group_size=1, seed=0)
    with pytest.raises(ConfigError, match="no setting 'colour'"):
        policy_of().rollout(PROMPTS, group_size=1, seed=0, plan=Plan(settings={"colour": 1}))
