"""The moving digits: clips, captions, scores of verifier and judge on real ones, and the small model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from mmgrpo.examples.digits import fit_neighbors, fit_verifier, load_split, to_image
from mmgrpo.examples.moving_digits import (
    DIRECTIONS,
    MovingDigitJudge,
    MovingDigitVerifier,
    mislabeled_moving_digits,
    moving,
    moving_digit_prompts,
)
from mmgrpo.examples.moving_pipelines import moving_digits_pipeline, video_autoencoder
from mmgrpo.policies.diffusion import DenoisingPolicy
from PIL import Image

from mmgrpo.config.loading import load_config
from mmgrpo.errors import DataError
from mmgrpo.types import Plan, Prompt, Sample
from tests.policies.contract import largest_difference, values

Judge = MovingDigitVerifier | MovingDigitJudge
OPPOSITE = {"left": "right", "right": "left", "up": "down", "down": "up"}


def clips(images: np.ndarray, labels: np.ndarray) -> list[Sample]:
    """Real digits, each moved in each direction, with the columns that say so."""
    return [
        Sample(
            Prompt("", columns={"digit": int(label), "direction": direction}),
            group=0,
            member=0,
            video=[to_image(frame) for frame in moving(image, direction)],
        )
        for image, label in zip(images, labels, strict=True)
        for direction in DIRECTIONS
    ]


def with_columns(samples: Sequence[Sample], **columns: object) -> list[Sample]:
    """The same clips, asked for otherwise."""
    return [replace(sample, prompt=Prompt("", columns={**sample.prompt.columns, **columns})) for sample in samples]


@pytest.fixture(scope="module")
def train() -> list[Sample]:
    return clips(load_split().train[:60], load_split().train_labels[:60])


@pytest.fixture(scope="module")
def held_out() -> list[Sample]:
    return clips(load_split().held_out[:100], load_split().held_out_labels[:100])


def test_a_digit_moves_from_edge_to_edge() -> None:
    digit = load_split().train[0]
    for direction, corners in {
        "right": [(4, 0), (4, 4), (4, 8)],
        "left": [(4, 8), (4, 4), (4, 0)],
        "down": [(0, 4), (4, 4), (8, 4)],
        "up": [(8, 4), (4, 4), (0, 4)],
    }.items():
        for frame, (top, left) in zip(moving(digit, direction), corners, strict=True):
            assert np.array_equal(frame[top : top + 8, left : left + 8], digit)
            assert (frame + 1).sum() == pytest.approx((digit + 1).sum())


@pytest.mark.first_case
@pytest.mark.parametrize(("make", "share"), [(MovingDigitVerifier, 0.978), (MovingDigitJudge, 0.965)])
def test_real_clips_of_the_other_part_are_read(
    make: Callable[[], MovingDigitVerifier | MovingDigitJudge],
    share: float,
    train: list[Sample],
    held_out: list[Sample],
) -> None:
    samples = held_out if make is MovingDigitVerifier else train
    assert np.mean([value for value in make()(samples) if value is not None]) == pytest.approx(share, abs=0.01)


@pytest.mark.nightly
@pytest.mark.parametrize("make", [MovingDigitVerifier, MovingDigitJudge])
def test_other_motions_score_zero(make: Callable[[], Judge], held_out: list[Sample]) -> None:
    some, score = held_out[:80], make()
    elsewhere = [with_columns([sample], direction=OPPOSITE[sample.prompt.columns["direction"]])[0] for sample in some]
    another = [with_columns([sample], digit=(sample.prompt.columns["digit"] + 1) % 10)[0] for sample in some]
    still = [replace(sample, video=[sample.video[1]] * 3) for sample in some if sample.video]
    empty = [replace(sample, video=[Image.new("L", (16, 16))] * 3) for sample in some]
    assert score(elsewhere) == score(still) == score(empty) == [0.0] * 80
    assert np.mean([value for value in score(another) if value is not None]) < 0.05
    larger = [
        replace(sample, video=[frame.resize((32, 32), 0).convert("RGB") for frame in sample.video or ()])
        for sample in some
    ]
    assert score(larger) == score(some)


def test_a_third_of_the_reward_is_a_frame(held_out: list[Sample]) -> None:
    verifier = MovingDigitVerifier()
    digit_7, digit_1 = (
        next(clip for clip in held_out if clip.prompt.columns["digit"] == digit and verifier([clip]) == [1.0])
        for digit in (7, 1)
    )
    assert digit_7.video is not None
    assert digit_1.video is not None
    mixed = replace(digit_7, video=[digit_7.video[0], digit_1.video[1], digit_7.video[2]])
    assert verifier([mixed]) == [pytest.approx(2 / 3)]


def test_a_frame_that_only_one_classifier_reads_counts_half() -> None:
    split = load_split()
    images = split.held_out.reshape(len(split.held_out), -1)
    perceptron, neighbors = (fit().predict(images) == split.held_out_labels for fit in (fit_verifier, fit_neighbors))
    n = int(np.flatnonzero(perceptron != neighbors)[0])
    assert MovingDigitVerifier()(clips(split.held_out[n : n + 1], split.held_out_labels[n : n + 1])) == [0.5] * 4


def test_ink_next_to_the_digit_is_subtracted(held_out: list[Sample]) -> None:
    verifier = MovingDigitVerifier()
    clip = next(
        sample for sample in held_out if sample.prompt.columns["direction"] == "up" and verifier([sample]) == [1.0]
    )
    assert clip.video is not None
    gray = [np.asarray(frame.convert("L")).copy() for frame in clip.video]
    ink = [frame.sum() / 255 for frame in gray]
    for frame in gray:
        frame[:4, :2] = 255  # 8 pixels, to the left of where the digit is
    gray_clip = replace(clip, video=[Image.fromarray(frame) for frame in gray])
    assert verifier([gray_clip]) == [pytest.approx(np.mean([amount / (amount + 8) for amount in ink]), abs=1e-5)]


def test_columns_and_frames_are_checked(held_out: list[Sample]) -> None:
    sample = held_out[0]
    assert MovingDigitJudge()([replace(sample, video=None), replace(sample, prompt=Prompt(""))]) == [None, None]
    with pytest.raises(DataError, match="'direction' must be one of right, left, down, up, got 'north'"):
        MovingDigitJudge()(with_columns([sample], direction="north"))
    with pytest.raises(DataError, match="clips of 3 frames, got 2"):
        MovingDigitVerifier()([replace(sample, video=list(sample.video or ())[:2])])


def test_a_share_of_the_captions_is_wrong() -> None:
    examples = mislabeled_moving_digits(0.5, 0.1)
    columns = [example.prompt.columns for example in examples]
    right = {name: np.mean([c[name] == c[f"true_{name}"] for c in columns]) for name in ("digit", "direction")}
    assert len(examples) == 4 * 1437
    assert right == {
        "digit": pytest.approx(1 - 0.1 * 0.9, abs=0.01),
        "direction": pytest.approx(1 - 0.5 * 0.75, abs=0.02),
    }
    assert all(example.prompt.text.split()[2] == example.prompt.columns["direction"] for example in examples)
    assert Counter(prompt.columns["direction"] for prompt in moving_digit_prompts()) == dict.fromkeys(DIRECTIONS, 10)
    with pytest.raises(DataError, match="shares of redrawn captions"):
        mislabeled_moving_digits(1.5)


def test_the_autoencoder_is_exact() -> None:
    vae = video_autoencoder()
    pixels = torch.rand(2, 1, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    pixels[0] = -1
    with torch.no_grad():
        latent = vae.encode(pixels, return_dict=False)[0]
        assert (latent.mode() - pixels).abs().max() < 5e-4
        assert latent.std.max() < 1e-6
        assert (vae.decode(pixels, return_dict=False)[0] - pixels).abs().max() < 5e-4


@pytest.mark.nightly
def test_the_quickstart_samples_clips_and_rescores_them() -> None:
    section = load_config("quickstart/moving-digit-video").policy
    assert section is not None
    settings = section.model_dump(exclude={"name", "model"})
    policy = DenoisingPolicy(moving_digits_pipeline(), settings)
    rollout = policy.rollout(moving_digit_prompts()[:2], group_size=2, seed=0, plan=Plan(stochastic=(1, 5)))
    assert [([frame.size for frame in sample.video or ()], sample.frame_rate) for sample in rollout.samples] == [
        ([(16, 16)] * 3, 3.0)
    ] * 4
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-5
    examples = mislabeled_moving_digits()[:4]
    loss = policy.supervised_loss(examples, seeds=[0, 1, 2, 3]).mean
    assert 0.5 < float(loss.detach()) < 4  # velocities of noise and of clips that are mostly black: about 1 + 0.9
