"""Calls with inputs other than lists of prompts, outputs other than images, and combined pipelines."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow
from mmgrpo.policies.diffusion.failures import DECODED
from mmgrpo.policies.diffusion.outputs import audios_of, media_of, samples_of
from PIL import Image

from mmgrpo.errors import ConfigError, DataError, PolicyError, ReplayError
from mmgrpo.runs.sample_files import write_samples
from mmgrpo.serving.wire import pack_samples, unpack_request
from mmgrpo.types import Plan, Prompt, Rollout, Sample, Scores
from tests.breadth import assembly
from tests.policies import foreign_pipelines
from tests.policies.contract import gradients, move, sample_difference, values
from tests.policies.tiny_policies import policy_of

PROMPTS = [Prompt("short"), Prompt("a longer one")]
SEED = 3


def _policy(kind: Any = foreign_pipelines.FieldPipeline, **settings: Any) -> DenoisingPolicy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lora = {"rank": 2, "alpha": 2.0, "targets": ("inner", "outer")}
        return DenoisingPolicy(foreign_pipelines.build(kind), {"lora": lora, "strength": 0.7, **settings})


def _random_mask(policy: DenoisingPolicy, prompts: list[Prompt] = PROMPTS, plan: Plan | None = None) -> Rollout:
    return policy.rollout(prompts, group_size=2, seed=SEED, plan=plan)


def _same(policy: DenoisingPolicy, prompts: list[Prompt] = PROMPTS) -> None:
    """The policy draws, scores and trains as the plain one does, row by row."""
    plain = _policy()
    expected, actual = _random_mask(plain), _random_mask(policy, prompts)
    torch.testing.assert_close(actual.old_logprob_BT, expected.old_logprob_BT, rtol=1e-6, atol=1e-6)
    move(plain.trainable)
    move(policy.trainable)
    torch.testing.assert_close(values(policy, actual), values(plain, expected), rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(gradients(policy, actual), gradients(plain, expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_combined_pipeline_trains_the_nested_one() -> None:
    policy = _policy(foreign_pipelines.CombinedPipeline)
    inner = policy.pipeline.inner
    _same(policy)
    assert type(inner) is foreign_pipelines.FieldPipeline  # between runs as its owner left it
    assert inner.net is policy.pipeline.net
    assert inner.scheduler is policy.pipeline.scheduler


def test_a_single_prompt_pipeline_runs_row_by_row(caplog: Any) -> None:
    policy = _policy(foreign_pipelines.SingleStringPipeline)
    with caplog.at_level(logging.WARNING):
        _same(policy)
    assert "SingleStringPipeline does not take rows as lists" in caplog.text
    assert "'list' object has no attribute 'removesuffix'" in caplog.text
    assert _random_mask(policy).num_unbatched == 4


def test_a_single_prompt_pipeline_samples_deterministically() -> None:
    plain, policy = _policy(), _policy(foreign_pipelines.SingleStringPipeline)
    still = Plan(stochastic=())
    assert sample_difference(_random_mask(policy, plan=still).samples, _random_mask(plain, plan=still).samples) <= 1


def test_a_failing_call_raises_with_its_arguments() -> None:
    policy = _policy(call={"num_inference_steps": "four"})
    with pytest.raises(PolicyError, match=r"call with generator, num_inference_steps, prompt fails with \w+Error"):
        _random_mask(policy)


def test_data_columns_are_call_arguments() -> None:
    prompts = [Prompt(p.text, columns={"lengths": len(p.text)}) for p in PROMPTS]
    _same(_policy(foreign_pipelines.LabeledPipeline, columns=("lengths",)), prompts)


def test_missing_columns_raise() -> None:
    with pytest.raises(ConfigError, match=r"no argument colours; it has generator, lengths, num_inference_steps"):
        _policy(foreign_pipelines.LabeledPipeline, columns=("colours",))
    policy = _policy(foreign_pipelines.LabeledPipeline, columns=("lengths",))
    with pytest.raises(DataError, match=r"policy.columns needs the column 'lengths'; the row 'short' has \[\]"):
        _random_mask(policy)


def test_prompt_inputs_that_the_call_lacks_raise() -> None:
    with pytest.raises(ConfigError, match=r"has no argument image; it takes generator, num_inference_steps, prompt"):
        _random_mask(_policy(), [Prompt("short", images=(Image.new("RGB", (2, 2)),))])
    with pytest.raises(ConfigError, match=r"has no argument negative_prompt"):
        _random_mask(_policy(), [Prompt("short", negative="blue")])


def test_audio_without_a_rate_is_an_array(tmp_path: Path) -> None:
    policy = _policy(foreign_pipelines.SoundPipeline)
    _same(policy)
    rollout = _random_mask(policy)
    for sample, transitions in zip(rollout.samples, rollout.trace.transitions, strict=True):
        assert sample.array is not None
        assert torch.equal(sample.array, transitions[-1].next_state.reshape(2, 2))
    scores = Scores(names=(), value_BR=torch.zeros(4, 0), valid_BR=torch.zeros(4, 0).bool(), weight_R=torch.ones(0))
    write_samples(tmp_path, rollout.samples, scores)
    saved = torch.from_numpy(np.load(tmp_path / "0001.npy"))
    assert torch.equal(saved, rollout.trace.transitions[1][-1].next_state.reshape(2, 2))
    _, sent = unpack_request(*pack_samples(rollout.samples))
    assert [torch.equal(a.array, b.array) for a, b in zip(sent, rollout.samples, strict=True)] == [True] * 4  # type: ignore[arg-type]


@pytest.mark.parametrize("plan", [None, Plan(stochastic=())], ids=["drawn", "without noise"])
def test_audio_with_a_known_rate_is_audio(plan: Plan | None) -> None:
    policy = _policy(foreign_pipelines.SoundPipeline, sampling_rate=8)
    for sample, array in zip(
        _random_mask(policy, plan=plan).samples,
        _random_mask(_policy(foreign_pipelines.SoundPipeline), plan=plan).samples,
        strict=True,
    ):
        assert sample.audio is not None
        assert array.array is not None
        assert (sample.array, sample.image, sample.audio.sampling_rate) == (None, None, 8)
        assert torch.equal(sample.audio.values, array.array.clamp(-1, 1))


def test_a_conflicting_sampling_rate_raises() -> None:
    pipeline = assembly.build("AudioLDMPipeline")
    DenoisingPolicy(pipeline, {"call": {}, "sampling_rate": pipeline.vocoder.config.sampling_rate})
    with pytest.raises(ConfigError, match=r"the pipeline generates audio at \d+ Hz; remove the setting"):
        DenoisingPolicy(pipeline, {"call": {}, "sampling_rate": 7})


def test_unbatched_and_non_finite_audio_is_handled() -> None:
    output = foreign_pipelines.Sounds(audios=torch.tensor([[0.5, -3.0, float("nan")]]))
    actual = audios_of(output, 1, 8)
    assert actual is not None
    assert actual[0].values.tolist() == [[0.5, -1.0, 0.0]]
    (sample,) = samples_of([DenoisingRow(prompt=Prompt("rain"), seed=0, group=0, member=0)], output, rate=8)
    assert sample.failure == DECODED
    flat = audios_of({"frames": [[]], "audio": torch.zeros(3)}, 1, 8)
    assert flat is not None
    assert flat[0].values.shape == (1, 3)
    assert audios_of(output, 1, None) is None
    with pytest.raises(ReplayError, match="returned 1 audio clips for 2 prompts"):
        audios_of(output, 2, 8)


@pytest.mark.parametrize(
    ("name", "rate", "stated"),
    [
        ("AudioLDMPipeline", 16000, False),  # of its vocoder
        ("LongCatAudioDiTPipeline", 24000, False),  # of its autoencoder
        ("LTX2Pipeline", 16000, True),  # of its vocoder, whose autoencoder says the rate of its spectrograms
    ],
)
def test_diffusers_pipelines_state_their_sampling_rate(name: str, rate: int, stated: bool) -> None:
    call = assembly.arguments(name)
    policy = DenoisingPolicy(assembly.build(name), {"call": call, "rollout_batch": 1, "update_batch": 1})
    (sample,) = policy.rollout([Prompt("a fox")], group_size=1, seed=0, plan=Plan(stochastic=())).samples
    assert sample.audio is not None
    assert (sample.audio.sampling_rate, sample.array, bool(sample.video)) == (rate, None, stated)
    assert float(sample.audio.values.abs().max()) > 0


def test_a_hooked_encoder_is_not_cached() -> None:
    guide = foreign_pipelines.Guide()
    pipeline = foreign_pipelines.build(foreign_pipelines.HookedPipeline, guide=guide)
    lora = {"rank": 2, "alpha": 2.0, "targets": ("inner", "outer")}
    policy = DenoisingPolicy(pipeline, {"lora": lora, "denoisers": ("net",)})
    rollout = _random_mask(policy)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)


def test_a_row_may_have_several_entries_in_the_state() -> None:
    policy = _policy(foreign_pipelines.FramesPipeline)
    _same(policy)
    assert _random_mask(policy).num_unbatched == 4


def test_a_scheduler_outside_the_components_is_recorded() -> None:
    policy = _policy(foreign_pipelines.CustomSchedulerPipeline)
    assert "scheduler" not in policy.pipeline.components
    _same(policy)


def test_a_pipeline_that_steps_tokens_raises() -> None:
    with pytest.raises(ReplayError, match=r"a state of dtype torch.int64; denoising policies need floating-point"):
        _random_mask(_policy(foreign_pipelines.TokensPipeline))


def test_a_pipeline_without_steps_raises() -> None:
    with pytest.raises(PolicyError, match="SleepingPipeline took no step with its scheduler"):
        _random_mask(_policy(foreign_pipelines.SleepingPipeline))


RED = Image.new("RGB", (2, 2), (255, 0, 0))
LEVELS_HWC = np.zeros((2, 2, 3), dtype=np.float32)
LEVELS_HWC[..., 0] = 1.0


@pytest.mark.parametrize(
    ("output", "num_rows", "expected"),
    [
        ({"images": [RED, RED]}, 2, [RED, RED]),
        ({"images": np.stack([LEVELS_HWC] * 2)}, 2, [RED, RED]),
        ({"frames": [[RED, RED]]}, 1, [[RED, RED]]),
        ({"frames": np.stack([LEVELS_HWC] * 3)[None]}, 1, [[RED, RED, RED]]),
        ({"images": [RED, RED, RED]}, 1, [[RED, RED, RED]]),
        ({"nsfw": [False], "prediction": [RED]}, 1, [RED]),
        (([RED], None), 1, [RED]),
    ],
)
def test_images_and_videos_are_read_from_any_output(output: Any, num_rows: int, expected: list[Any]) -> None:
    actual = media_of(output, num_rows)
    as_lists = [[medium] if isinstance(medium, Image.Image) else medium for medium in actual]
    wanted = [[medium] if isinstance(medium, Image.Image) else medium for medium in expected]
    assert [[frame.tobytes() for frame in row] for row in as_lists] == [[f.tobytes() for f in row] for row in wanted]
    assert [isinstance(medium, list) for medium in actual] == [isinstance(medium, list) for medium in expected]


def test_a_wrong_number_of_results_raises() -> None:
    with pytest.raises(PolicyError, match="returned 3 results for 2 prompts"):
        media_of({"images": [RED] * 3}, 2)
    with pytest.raises(PolicyError, match="returned a dict without images or arrays for 2 prompts"):
        media_of({"nsfw": [False, False]}, 2)


def test_arrays_reach_rewards_unchanged() -> None:
    embedding = torch.tensor([[2.0, -1.0]])
    (actual,) = media_of({"image_embeds": embedding}, 1)
    assert torch.equal(actual, embedding[0])
    assert Sample(PROMPTS[0], 0, 0, array=actual).array is actual


@pytest.mark.nightly
def test_sizes_of_yaml_reach_the_call_as_tuples() -> None:
    """SDXL adds its three sizes up, of which those that are not stated are tuples."""
    policy = policy_of("sdxl", call={"num_inference_steps": 2})

    def pictures(**call: Any) -> np.ndarray:
        plan = Plan(stochastic=(), settings={"call": call})
        rollout = policy.rollout(PROMPTS, group_size=1, seed=SEED, plan=plan)
        assert not rollout.num_unbatched
        return np.stack([np.asarray(sample.image) for sample in rollout.samples])

    stated = pictures(original_size=(32, 24))
    assert np.array_equal(pictures(original_size=[32, 24]), stated)
    assert not np.array_equal(pictures(crops_coords_top_left=[4, 2]), stated)
    assert not np.array_equal(pictures(), stated)
