from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from mmgrpo.rewards.images.pixels import Brightness
from mmgrpo.rewards.video.motion import FrameMean, Motion, TemporalConsistency, movement
from PIL import Image
from transformers import AutoModel, AutoProcessor

from mmgrpo.config import RewardConfig
from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample
from tests.rewards.image_samples import drew, explanations, filmed, noise, numbers
from tests.tiny import judges


def pan(dx: int, dy: int, frames: int = 4, side: int = 128) -> list[Image.Image]:
    """Frames cut from one smooth scene, so that all of it moves by (dx, dy) pixels from frame to frame."""
    scene = noise(0, 60, 60).resize((side + 128, side + 128), Image.Resampling.BICUBIC)
    starts = [(64 - i * dx, 64 - i * dy) for i in range(frames)]
    return [scene.crop((x, y, x + side, y + side)) for x, y in starts]


@pytest.mark.parametrize(("dx", "dy"), [(3, 0), (-5, 2), (0, -8)])
def test_every_block_of_a_moved_scene_is_found(dx: int, dy: int) -> None:
    first, other = (np.asarray(frame.convert("L"), dtype=float) for frame in pan(dx, dy, 2))
    moves = movement(first, other)
    assert len(moves) == 49  # (128 - 16) / 16 blocks a side
    assert (moves == [dx, dy]).all()


def test_direction_is_the_cosine_with_the_motion() -> None:
    right, slant = filmed(pan(4, 0)), filmed(pan(3, -4))
    assert numbers(Motion(direction="right")([right])) == [pytest.approx(1)]
    assert numbers(Motion(direction="left")([right])) == [pytest.approx(-1)]
    assert numbers(Motion(direction="up")([right])) == [0.0]
    assert numbers(Motion(direction="right")([slant])) == [pytest.approx(0.6)]
    assert numbers(Motion(direction="up")([slant])) == [pytest.approx(0.8)]


def test_the_direction_may_be_in_the_row() -> None:
    rows = [filmed(pan(0, 4), direction=direction) for direction in ("down", "up", "sideways")]
    assert numbers(Motion()([*rows, filmed(pan(0, 4))])) == [pytest.approx(1), pytest.approx(-1), None, None]


def test_magnitude_is_in_percent_of_the_longer_side() -> None:
    """5 of 128 pixels; with every other frame, twice as far in each step."""
    length = 100 * 5 / 128
    video = filmed(pan(3, 4, frames=3))
    assert numbers(Motion("magnitude")([video])) == [pytest.approx(length)]
    assert numbers(Motion("magnitude", target=2 * length)([video])) == [pytest.approx(0.5)]
    assert numbers(Motion("magnitude", target=length / 3)([video])) == [0.0]
    assert numbers(Motion("magnitude", frames=2)([filmed(pan(2, 0, frames=3))])) == [pytest.approx(100 * 4 / 128)]


def test_motion_does_not_depend_on_the_resolution() -> None:
    double = [frame.resize((256, 256), Image.Resampling.NEAREST) for frame in pan(3, 4)]
    assert numbers(Motion("magnitude")([filmed(double)])) == numbers(Motion("magnitude")([filmed(pan(3, 4))]))


def test_static_videos_score_zero_and_images_are_not_scored() -> None:
    still, plain = [noise(0, 128, 128)] * 3, [Image.new("RGB", (128, 128), "teal")] * 3
    samples = [filmed(still), filmed(plain), filmed([noise(0)]), drew(noise(0)), filmed(None)]
    assert numbers(Motion(direction="up")(samples)) == [0.0, 0.0, None, None, None]
    assert numbers(Motion("magnitude")(samples)) == [0.0, 0.0, None, None, None]


def test_pixel_consistency_by_hand() -> None:
    """Neighbours differ by 51 and by 102 grey levels: 0.2 and 0.4."""
    levels = [Image.new("RGB", (4, 4), (v, v, v)) for v in (0, 51, 153)]
    assert numbers(TemporalConsistency()([filmed(levels), filmed(levels[:1]), drew(levels[0])])) == [
        pytest.approx(0.7),
        None,
        None,
    ]
    assert numbers(TemporalConsistency(frames=2)([filmed(levels)])) == [pytest.approx(0.4)]


@torch.no_grad()
def test_feature_consistency_holds_frames_against_the_first_and_the_one_before(tmp_path: Path) -> None:
    folder = str(judges.save_dino(tmp_path))
    frames = [noise(0), noise(1), noise(2)]
    model, processor = AutoModel.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
    first, second, third = (
        model(processor(images=f, return_tensors="pt")["pixel_values"]).last_hidden_state[0, 0].numpy() for f in frames
    )

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return max(float(a @ b / np.sqrt((a @ a) * (b @ b))), 0)

    expected = (cosine(second, first) + (cosine(third, first) + cosine(third, second)) / 2) / 2
    assert expected < 0.999
    reward = TemporalConsistency("feature", model=folder, batch_size=2)
    assert numbers(reward([filmed(frames), filmed(frames[:1] * 3)])) == [
        pytest.approx(expected, abs=1e-5),
        pytest.approx(1, abs=1e-5),
    ]


def test_frame_mean_scores_evenly_spaced_frames() -> None:
    video = filmed([Image.new("L", (2, 2), level) for level in (0, 51, 102, 153, 204)])
    assert numbers(FrameMean(Brightness(), frames=3)([video])) == [pytest.approx((0 + 102 + 204) / 3 / 255)]
    assert numbers(FrameMean(Brightness(), frames=99)([video])) == [pytest.approx(102 / 255)]
    assert numbers(FrameMean(Brightness(), frames=2, pool="min")([video])) == [0.0]
    assert numbers(FrameMean(Brightness(), frames=1)([video, drew(noise(0))])) == [pytest.approx(102 / 255), None]


def test_frame_mean_separates_none_and_failures() -> None:
    scored: list[Sample] = []

    def reward(samples: Sequence[Sample]) -> list[float | None]:
        scored.extend(samples)
        return [
            {"none": None, "nan": math.nan, "some": None if i % 2 else 3.0}[s.prompt.text]
            for i, s in enumerate(samples)
        ]

    values = numbers(FrameMean(reward, frames=2)([filmed([noise(0)] * 2, text) for text in ("some", "none", "nan")]))
    assert values[:2] == [3.0, None]
    assert math.isnan(values[2] or 0)
    assert all(sample.image is not None and sample.video is None for sample in scored)


def test_frame_mean_of_a_reward_by_name() -> None:
    from mmgrpo.training.build import build_rewards

    (named,) = build_rewards(
        [RewardConfig.model_validate({"name": "frame_mean", "of": {"name": "brightness", "target": 0.0}})]
    )
    assert numbers(named.function([filmed([Image.new("L", (2, 2), 51)])])) == [pytest.approx(0.8)]


def test_invalid_settings_raise() -> None:
    with pytest.raises(ConfigError, match="right, left, up, down"):
        Motion(direction="north")
    with pytest.raises(ConfigError, match="positive magnitude"):
        Motion(direction="up", target=2)
    with pytest.raises(ConfigError, match="must be a reward"):
        FrameMean("brightness")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ConfigError, match="mean, min"):
        FrameMean(Brightness(), pool="max")  # pyrefly: ignore[bad-argument-type]


def test_the_explanation_has_the_motion() -> None:
    """3 and 4 of 128 pixels are 2.34375 and 3.125 percent, together 5 of 128: 3.90625."""
    (moved,) = explanations(Motion(direction="right")([filmed(pan(3, 4))]))
    expected = {"right": 2.34375, "down": 3.125, "magnitude": 3.90625, "moving_frac": 1.0}
    assert moved == {"parts": pytest.approx(expected, abs=1e-4)}


def test_the_frames_explain_the_score() -> None:
    """Grey values 0, 102 and 255: neighbors differ by 0.4 and 0.6, so the third frame is least like the one before."""
    levels = [Image.new("RGB", (4, 4), (level,) * 3) for level in (0, 102, 255)]
    assert explanations(TemporalConsistency()([filmed(levels)])) == [{"parts": {"least": 0.4, "at_frame": 2}}]
    assert explanations(FrameMean(Brightness(), frames=3)([filmed(levels)])) == [
        {"parts": {"frame 0": 0.0, "frame 1": 0.4, "frame 2": 1.0}}
    ]
