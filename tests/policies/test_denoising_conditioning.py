"""Images of rows: batched in a way that the pipeline accepts, with independent rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxKontextPipeline, StableDiffusion3Img2ImgPipeline
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.call_form import form_of
from mmgrpo.policies.diffusion.conditioning import MediaBatching, batch_media
from PIL import Image

from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Example, OffPolicySample, Plan, Prompt, Sample
from tests.policies.contract import sample_difference, values
from tests.policies.tiny_policies import pipeline_of, policy_of
from tests.tiny.picture_adapters import with_ip_adapter

SEED = 3
TEXTS = ("a red fox", "two blue squares on a table")


def _picture(seed: int, side: int = 16) -> Image.Image:
    return Image.fromarray(np.random.RandomState(seed).randint(0, 256, (side, side, 3)).astype(np.uint8))


def _prompts(num_pictures: int = 1, side: int = 16) -> list[Prompt]:
    return [
        Prompt(text, images=tuple(_picture(10 * row + k, side) for k in range(num_pictures)))
        for row, text in enumerate(TEXTS)
    ]


class _FirstPictureKontext(FluxKontextPipeline):
    """Shows all rows the first image, without a word."""

    def __call__(self, image: Any = None, prompt: Any = None, **arguments: Any) -> Any:
        first = image[0] if isinstance(image, list) else image
        stock = FluxKontextPipeline.__call__.__wrapped__
        return stock(self, image=first, prompt=prompt, **arguments)


def _first_picture_kontext() -> Any:
    return _FirstPictureKontext(**pipeline_of("flux-kontext").components)


def _img2img() -> Any:
    return StableDiffusion3Img2ImgPipeline(**pipeline_of("sd3").components)


def _runs(policy: DenoisingPolicy) -> list[int]:
    """Grows by the rows of each run of the pipeline's denoiser from now on."""
    rows: list[int] = []
    transformer = policy.pipeline.transformer
    forward = transformer.forward

    @wraps(forward)
    def counted(*args: Any, **kwargs: Any) -> Any:
        rows.append(kwargs["hidden_states"].shape[0])
        return forward(*args, **kwargs)

    transformer.forward = counted
    return rows


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "build", "prompts", "showing", "rows"),
    [
        ("flux-kontext", lambda: pipeline_of("flux-kontext"), _prompts(), MediaBatching.EACH, 4),
        pytest.param("sd3", _img2img, _prompts(), MediaBatching.EACH, 4, marks=pytest.mark.nightly),
        pytest.param(
            "flux2",
            lambda: pipeline_of("flux2"),
            _prompts(1, side=64),
            MediaBatching.SHARED,
            2,
            marks=pytest.mark.nightly,
        ),
        ("flux2-klein", lambda: pipeline_of("flux2-klein"), _prompts(2, side=64), MediaBatching.SHARED, 2),
        pytest.param(
            "flux-kontext", _first_picture_kontext, _prompts(), MediaBatching.SHARED, 2, marks=pytest.mark.nightly
        ),
    ],
    ids=["kontext", "img2img", "flux2", "klein-of-two", "first-picture-alone"],
)
def test_rows_share_runs_if_the_pipeline_keeps_them_independent(
    name: str, build: Any, prompts: list[Prompt], showing: MediaBatching, rows: int
) -> None:
    settings: dict[str, Any] = {"call": {"num_inference_steps": 3}}
    policy = policy_of(name, build(), **settings)
    first = policy.rollout(prompts, group_size=2, seed=SEED)
    assert policy._instrumented.form.media_batching is showing
    assert any(showing.value in choice for choice in policy.resolved_settings)
    assert first.num_unbatched == 0
    runs = _runs(policy)
    rollout = policy.rollout(prompts, group_size=2, seed=SEED)
    assert set(runs) == {rows}
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    alone = policy_of(name, build(), rollout_batch=1, update_batch=1, **settings)
    by_itself = alone.rollout(prompts, group_size=2, seed=SEED)
    torch.testing.assert_close(rollout.old_logprob_BT, by_itself.old_logprob_BT, atol=1e-4, rtol=1e-4)
    assert sample_difference(rollout.samples, by_itself.samples) <= 1
    torch.testing.assert_close(values(policy, rollout, [3])[3], rollout.old_logprob_BT[3], atol=1e-4, rtol=1e-4)
    for evaluation in policy.evaluate(rollout):
        evaluation.logprob_BT.sum().backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in policy.trainable)


@pytest.mark.nightly
def test_images_of_different_sizes_and_counts_run_separately() -> None:
    policy = policy_of("flux-kontext")
    small, large = _prompts(), _prompts(side=24)
    prompts = [small[0], small[1], large[0], Prompt("without a picture")]
    policy.rollout(prompts, group_size=2, seed=SEED)
    runs = _runs(policy)
    rollout = policy.rollout(prompts, group_size=2, seed=SEED)
    assert runs == [4] * 4 + [2] * 4 + [2] * 4
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    moved = policy.rollout(prompts[2:3], group_size=2, seed=SEED, plan=Plan(prompt_ids=(2,)))
    assert sample_difference(moved.samples, rollout.samples[4:6]) == 0


@pytest.mark.nightly
def test_examples_and_finished_samples_with_images_share_runs() -> None:
    policy = policy_of("flux-kontext")
    prompts, targets = _prompts(), [_picture(5), _picture(6)]
    examples = [Example(prompt=prompt, image=target) for prompt, target in zip(prompts, targets, strict=True)]
    together = policy.supervised_loss(examples, seeds=[1, 2]).mean
    assert policy._instrumented.form.is_verified
    runs = _runs(policy)
    apart = [
        policy.supervised_loss([example], seeds=[seed]).mean for example, seed in zip(examples, (1, 2), strict=True)
    ]
    torch.testing.assert_close(together, torch.stack(apart).mean())
    assert together.requires_grad
    assert runs == [1, 1]
    policy.supervised_loss(examples, seeds=[1, 2])
    assert runs == [1, 1, 2]
    samples = policy.rollout(prompts, group_size=1, seed=SEED).samples
    runs.clear()
    read = policy.read([OffPolicySample(sample=sample) for sample in samples], seed=SEED)
    assert runs == [8]  # two rows at four levels
    assert torch.equal(values(policy, read), read.old_logprob_BT)


@pytest.mark.nightly
@pytest.mark.parametrize("as_list", [False, True])
def test_image_columns_set_further_arguments(tmp_path: Path, as_list: bool) -> None:
    masks = {"lower": Image.new("L", (16, 16)), "left": Image.new("L", (16, 16))}
    masks["lower"].paste(255, (0, 8, 16, 16))
    masks["left"].paste(255, (0, 0, 8, 16))
    rows: list[dict[str, Any]] = []
    for number, (name, mask) in enumerate(masks.items()):
        mask.save(tmp_path / f"{name}.png")
        _picture(number).save(tmp_path / f"{number}.png")
        path = f"{name}.png"
        rows.append({"prompt": TEXTS[number], "image": f"{number}.png", "where": [path] if as_list else path})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prompts = load_prompts(tmp_path / "rows.jsonl", image_columns=["where"])
    assert list(prompts[1].columns["where"]) == [str(tmp_path / "left.png")]
    without = ("image", "mask_image")
    policy = policy_of("sd15-inpaint", without=without, image_arguments={"mask_image": "where"})
    rollout = policy.rollout(prompts, group_size=2, seed=SEED)
    assert policy._instrumented.form.media_batching is MediaBatching.EACH
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    for row, (name, mask) in enumerate(masks.items()):
        in_call = policy_of("sd15-inpaint", without=without, call={"image": _picture(row), "mask_image": mask})
        expected = in_call.rollout([Prompt(TEXTS[row])], group_size=2, seed=SEED, plan=Plan(prompt_ids=(row,)))
        assert sample_difference(expected.samples, rollout.samples[2 * row : 2 * row + 2]) <= 1, name
    with pytest.raises(
        DataError,
        match=r"column 'where': .*; prompts.image_columns: \[where\] resolves paths relative to the data file",
    ):
        policy.rollout(load_prompts(tmp_path / "rows.jsonl"), group_size=1, seed=SEED)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "guided"), [("sd15", False), ("sdxl", True)])
def test_an_image_column_sets_the_ip_adapter(name: str, guided: bool) -> None:
    def policy(**settings: Any) -> DenoisingPolicy:
        return policy_of(name, with_ip_adapter(pipeline_of(name)), guided=guided, **settings)

    def samples_of(by: DenoisingPolicy, row: int, style: int = -1) -> list[Sample]:
        prompt = Prompt(TEXTS[row], columns={"style": _picture(style)} if style >= 0 else {})
        return list(by.rollout([prompt], group_size=2, seed=SEED, plan=Plan(prompt_ids=(row,))).samples)

    conditioned = policy(image_arguments={"ip_adapter_image": "style"})
    prompts = [Prompt(text, columns={"style": _picture(row)}) for row, text in enumerate(TEXTS)]
    rollout = conditioned.rollout(prompts, group_size=2, seed=SEED)
    assert conditioned._instrumented.form.media_batching is MediaBatching.SHARED  # a list is one of adapters
    assert torch.equal(values(conditioned, rollout), rollout.old_logprob_BT)
    for row in (0, 1):
        expected = samples_of(policy(call={"ip_adapter_image": _picture(row)}), row)
        assert sample_difference(expected, rollout.samples[2 * row : 2 * row + 2]) <= 1
    assert sample_difference(samples_of(conditioned, 0, style=1), rollout.samples[:2]) > 1
    conditioned.pipeline.set_ip_adapter_scale(0.0)
    assert sample_difference(samples_of(conditioned, 0, style=1), samples_of(conditioned, 0, style=0)) == 0


@pytest.mark.parametrize(
    ("image_arguments", "columns", "error", "message"),
    [
        ({"mask": "where"}, {}, ConfigError, "policy.image_arguments: the call of .* has no argument mask"),
        ({"ip_adapter_image": "where"}, {"other": 1}, DataError, r"needs the column 'where'; .*\['other'"),
        ({"image": "where"}, {"where": 1}, ConfigError, "policy.image_arguments set the argument .*'image'"),
    ],
)
def test_invalid_image_settings_raise(
    image_arguments: Mapping[str, str], columns: Mapping[str, Any], error: type[Exception], message: str
) -> None:
    prompt = Prompt("a red fox", images=(_picture(0),), columns=columns)
    with pytest.raises(error, match=message):
        policy_of("flux-kontext", image_arguments=image_arguments).rollout([prompt], group_size=1, seed=SEED)


def test_images_that_the_call_ignores_raise() -> None:
    with pytest.raises(ConfigError, match="has no argument ip_adapter_imag; ip_adapter_image for ip_adapter_imag"):
        policy_of("sd15", image_arguments={"ip_adapter_imag": "where"})


def test_images_that_the_call_may_ignore_warn(caplog: pytest.LogCaptureFixture) -> None:
    def passes_on(prompt: str, **kwargs: Any) -> Any:
        return dict(prompt=prompt, **kwargs)

    form_of(passes_on, (), {"mask": "where"})
    assert "policy.image_arguments: the call of the pipeline has no argument mask; it has" in caplog.text
    assert caplog.text.rstrip().endswith("it accepts other arguments, but may ignore them")


def test_media_are_batched_in_each_way() -> None:
    first, two = _picture(1), _picture(2)
    assert batch_media([first, two], MediaBatching.EACH) == [first, two]
    assert batch_media([[first, two], [two, first]], MediaBatching.EACH) == [[first, two], [two, first]]
    assert batch_media([first, two], MediaBatching.NESTED) == [[first], [two]]
    assert batch_media([first, first], MediaBatching.SHARED) is first
    assert batch_media([first], MediaBatching.NESTED) is first
    assert [showing.following for showing in MediaBatching] == [*list(MediaBatching)[1:], MediaBatching.ALONE]
