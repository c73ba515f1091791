"""Buckets: one size per group, with the rows of a run at that size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.buckets import Buckets
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow
from mmgrpo.policies.diffusion.sampling_params import SamplingParams
from mmgrpo.policies.diffusion.settings import BucketSettings, DenoisingSettings
from mmgrpo.policies.diffusion.step_sampler import StepSampler
from pydantic import ValidationError

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Example, OffPolicySample, Plan, Prompt, Source
from tests.policies import contract
from tests.policies.contract import Subject, values
from tests.policies.tiny_policies import parameters_of, policy_of

pytestmark = pytest.mark.nightly  # `.ci/run` has ten minutes

SIZES: dict[str, list[dict[str, int]]] = {
    "flux": [{"width": 16, "height": 16}, {"width": 32, "height": 16}],  # whose schedule moves with the size
    "ltx": [{"width": 32, "height": 32, "num_frames": 5}, {"width": 64, "height": 32, "num_frames": 1}],
}
NAMES = ["flux", pytest.param("ltx", marks=pytest.mark.nightly)]


def prompts(name: str) -> list[Prompt]:
    """Rows whose columns say a size that is no bucket's, by turns nearest to each."""
    return [
        Prompt(text, columns={**{key: value + 1 for key, value in size.items()}})
        for text, size in zip(
            ("a fox", "two blue squares on a table", "rain"), [*SIZES[name], SIZES[name][0]], strict=True
        )
    ]


def policy(name: str, *, batch: int = 8, choose: str = "nearest", **others: Any) -> DenoisingPolicy:
    without = ("width", "height", "num_frames")
    return policy_of(name, batch=batch, without=without, buckets={"sizes": SIZES[name], "choose": choose}, **others)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_policy_laws_hold(name: str) -> None:
    subject = Subject(
        make=lambda batch: policy(name, batch=batch),
        parameters=parameters_of,
        prompts=prompts(name)[:2],
        min_trained_frac=0.9,
    )
    contract.check_on_policy_gap(subject)
    contract.check_on_policy_gap(subject, Plan(stochastic=(1, 2), same_initial_noise=True))
    contract.check_every_decision_once(subject)
    contract.check_rows_and_batches(subject)
    contract.check_prompt_ids(subject)
    contract.check_emitted_samples(subject)


@pytest.mark.parametrize("plan", [Plan(), Plan(stochastic=())], ids=["drawn", "without noise"])
def test_rows_equal_those_of_a_run_at_their_size(name: str, plan: Plan) -> None:
    all_prompts = prompts(name)
    mixed = policy(name).rollout(all_prompts, group_size=2, seed=3, plan=plan)
    assert mixed.prompt_index_B.tolist() == [0, 0, 1, 1, 2, 2]
    assert [sample.member for sample in mixed.samples] == [0, 1] * 3
    for bucket, rows in ((0, [0, 1, 4, 5]), (1, [2, 3])):
        size = SIZES[name][bucket]
        alone = policy_of(name, call=size)
        separate_plan = Plan(stochastic=plan.stochastic, prompt_ids=tuple(sorted({row // 2 for row in rows})))
        only = alone.rollout(
            [all_prompts[group] for group in separate_plan.prompt_ids or ()], group_size=2, seed=3, plan=separate_plan
        )
        for row, expected in zip(rows, only.samples, strict=True):
            sample = mixed.samples[row]
            frames = sample.video or [sample.image]
            assert {frame.size for frame in frames if frame is not None} == {(size["width"], size["height"])}
            assert len(frames) == size.get("num_frames", 1)
            assert contract.sample_difference([sample], [expected]) == 0
        assert torch.equal(mixed.old_logprob_BT[rows], only.old_logprob_BT)
        if only.noise is not None and mixed.noise is not None:
            assert torch.equal(mixed.noise.std_BT[rows], only.noise.std_BT)
    if name == "flux" and mixed.noise is not None:
        first, other = mixed.noise.std_BT[0], mixed.noise.std_BT[2]
        assert not torch.allclose(first[:-1], other[:-1], rtol=1e-3)


@pytest.mark.nightly
def test_the_order_of_prompts_changes_no_sample() -> None:
    all_prompts = prompts("flux")
    plan = Plan(prompt_ids=(7, 8, 9))
    forth = policy("flux", choose="random").rollout(all_prompts, group_size=2, seed=3, plan=plan)
    back = policy("flux", choose="random").rollout(
        all_prompts[::-1], group_size=2, seed=3, plan=Plan(prompt_ids=(9, 8, 7))
    )
    again = [4, 5, 2, 3, 0, 1]
    assert torch.equal(forth.old_logprob_BT, back.old_logprob_BT[again])
    assert contract.sample_difference(forth.samples, [back.samples[row] for row in again]) == 0


def row(group: int, *, seed: int = 0, member: int = 0, **columns: Any) -> DenoisingRow:
    return DenoisingRow(prompt=Prompt("x", columns=columns), seed=seed, group=group, member=member, entry=group)


def chosen(sizes: Sequence[dict[str, int]], rows: Sequence[DenoisingRow], choose: str) -> list[dict[str, Any]]:
    """The bucket of each row."""
    sampling = StepSampler(sampler="flow_sde", strength=0.7, density="gaussian", reduction="mean")
    buckets = Buckets(BucketSettings.model_validate({"sizes": sizes, "choose": choose}))
    parts = buckets.row_sets(
        [[row] for row in rows], SamplingParams(step_sampler=sampling, call={"width": 1, "steps": 4})
    )
    actual = {id(row): dict(part.params.call) for part in parts for row in part.rows}
    return [{**actual[id(row)]} for row in rows]


def test_random_buckets_are_uniform_and_keyed_by_step_and_group() -> None:
    sizes = [{"width": 8 * n, "height": 8} for n in (1, 2, 3, 4)]
    steps = [[row(group, seed=seed) for group in range(400)] for seed in (1, 2)]
    sampled = [call["width"] for rows in steps for call in chosen(sizes, rows, "random")]
    counts = [sampled.count(size["width"]) for size in sizes]
    assert sum(counts) == 800
    assert all(abs(count - 200) < 4 * math.sqrt(800 * 0.25 * 0.75) for count in counts)  # within 4 standard errors
    assert sampled[:400] != sampled[400:]
    assert [call["width"] for call in chosen(sizes, steps[0][5::-1], "random")] == sampled[5::-1]
    members = [row(3, seed=1, member=member) for member in range(4)]
    assert {call["width"] for call in chosen(sizes, members, "random")} == {sampled[3]}


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        ({"width": 832, "height": 480}, 832),
        ({"width": 854, "height": 480}, 832),
        ({"width": 1920, "height": 1080}, 1280),
        ({"width": 4096, "height": 4096}, 512),  # form before area
        ({"width": 300, "height": 500.0}, 480),
    ],
)
def test_the_nearest_size_is_mainly_nearest_in_aspect_ratio(columns: dict[str, Any], width: int) -> None:
    sizes = [{"width": w, "height": h} for w, h in ((832, 480), (480, 832), (1280, 720), (512, 512), (768, 384))]
    (actual,) = chosen(sizes, [row(0, **columns)], "nearest")
    assert (actual["width"], actual["steps"]) == (width, 4)


def test_lengths_distinguish_sizes_of_one_aspect_ratio() -> None:
    sizes = [{"width": 8, "height": 8, "num_frames": frames} for frames in (5, 17, 81)]
    rows = [row(n, width=8, height=8, num_frames=frames) for n, frames in enumerate((1, 16, 60, 999))]
    assert [call["num_frames"] for call in chosen(sizes, rows, "nearest")] == [5, 17, 81, 81]


@pytest.mark.parametrize("columns", [{}, {"width": 8}, {"width": 8, "height": "8"}, {"width": 8, "height": 0}])
def test_rows_without_a_size_raise(columns: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"choose: nearest needs .* the row 'x' has .*or set choose: random"):
        chosen([{"width": 8, "height": 8}], [row(0, **columns)], "nearest")


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [{"width": 8}],
        [{"width": 8, "height": 0}],
        [{"width": 8, "height": 8}, {"width": 8, "height": 8, "num_frames": 5}],
        [{"width": 8, "height": 8, "depth": 8}],
    ],
)
def test_invalid_bucket_sizes_raise(sizes: list[dict[str, int]]) -> None:
    with pytest.raises(ValidationError):
        BucketSettings.model_validate({"sizes": sizes})


@pytest.mark.parametrize("call", [{"num_frames": 0}, {"height": -8}, {"num_inference_steps": 0}])
def test_call_sizes_below_one_raise(call: dict[str, int]) -> None:
    (name,), (number,) = call, call.values()
    with pytest.raises(ValidationError, match=f"call.{name} must be at least 1, got {number}"):
        DenoisingSettings.model_validate({"call": call})
    with pytest.raises(ValidationError, match=f"evaluation_call.{name} must be at least 1, got {number}"):
        DenoisingSettings.model_validate({"evaluation_call": call})


def test_a_bucket_argument_that_the_call_lacks_raises() -> None:
    with pytest.raises(ConfigError, match=r"policy.buckets.sizes: .* has no argument num_frames"):
        policy_of("flux", buckets={"sizes": [{"width": 16, "height": 16, "num_frames": 5}]})


@pytest.mark.nightly
def test_finished_samples_are_renoised_at_their_size() -> None:
    mixed = policy("flux")
    sampled = mixed.rollout(prompts("flux"), group_size=1, seed=3, plan=Plan(stochastic=())).samples
    samples = [OffPolicySample(sample=sample, source=Source.ON_POLICY) for sample in sampled]
    read = mixed.read(samples, seed=5)
    assert contract.largest_difference(values(mixed, read), read.old_logprob_BT, read.mask_BT) < 1e-5
    for number, size in enumerate([*SIZES["flux"], SIZES["flux"][0]]):
        alone = policy_of("flux", call=size).read([samples[number]], seed=5)
        assert torch.allclose(alone.old_logprob_BT[0], read.old_logprob_BT[number], atol=1e-5)


@pytest.mark.nightly
def test_examples_are_trained_at_their_size() -> None:
    mixed = policy("flux")
    sampled = mixed.rollout(prompts("flux"), group_size=1, seed=3, plan=Plan(stochastic=())).samples
    examples = [Example(sample.prompt, image=sample.image) for sample in sampled]
    losses = [
        float(policy_of("flux", call=size).supervised_loss([example], seeds=[seed]).mean.detach())
        for example, size, seed in zip(examples, [*SIZES["flux"], SIZES["flux"][0]], (1, 2, 3), strict=True)
    ]
    actual = mixed.supervised_loss(examples, seeds=[1, 2, 3])
    assert float(actual.mean.detach()) == pytest.approx(sum(losses) / 3, rel=1e-5)
    assert actual.num_terms == 3
