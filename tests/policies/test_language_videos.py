"""Video files and their options, from the row to the tensors of a Qwen-VL model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, Video
from mmgrpo.policies.language.settings import LanguageSettings
from mmgrpo.policies.language.visual_inputs import visual_inputs
from mmgrpo.rewards.parsing.coordinate_frames import Coordinates
from PIL import Image
from qwen_vl_utils import vision_process

from mmgrpo import Trainer, types
from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.data.prompt_rows import prompt_of_row
from mmgrpo.data.videos import frames_of_video, open_video
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt, Sample
from tests.data.test_videos import levels, write_video
from tests.policies.tiny_language import picture, policy_of

SMALL = {"resized_height": 32, "resized_width": 32}


def prompt_with(part: dict[str, Any], *others: dict[str, Any]) -> Prompt:
    content = [part, *others, {"type": "text", "text": "what is this"}]
    return prompt_of_row({"prompt": [{"role": "user", "content": content}]}, "prompt", where="row 0", folder=None)


def media_of(part: dict[str, Any], *others: dict[str, Any], model: str = "qwen2.5-vl", **settings: Any) -> Any:
    return policy_of(model, **settings)._encoder(prompt_with(part, *others)).media


def frames(num: int = 8) -> list[Image.Image]:
    return [Image.new("RGB", (56, 56), (20 * n, 20 * n, 20 * n)) for n in range(num)]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """30 frames in 1.2 seconds."""
    return str(write_video(tmp_path_factory.mktemp("videos") / "a.mp4", 30, size=(64, 48)))


@pytest.mark.first_case
@pytest.mark.parametrize(
    "options",
    [{}, {"fps": 5.0}, {"nframes": 6}, {"video_start": 0.2, "video_end": 0.8}, {"max_pixels": 200_000}, SMALL],
    ids=str,
)
def test_a_file_is_sampled_and_resized_as_qwen_vl_utils_does(
    clip: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(element: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any], float]:
        """What its readers do, over frames that are read here."""
        images, fps = frames_of_video(element["video"]), 25.0
        first, last, total = vision_process.calculate_video_frame_range(element, len(images), fps)
        count = vision_process.smart_nframes(element, total_frames=total, video_fps=fps)
        index = torch.linspace(first, last, count).round().long().tolist()
        pixels = torch.from_numpy(np.stack([np.asarray(images[i]) for i in index])).permute(0, 3, 1, 2)
        return pixels, {"fps": fps, "frames_indices": index, "total_num_frames": total}, 0.0

    monkeypatch.setattr(vision_process, "get_video_reader_backend", lambda: "torchvision")
    monkeypatch.setitem(vision_process.VIDEO_READER_BACKENDS, "torchvision", read)
    element = {"video": clip, **options}
    expected, facts = vision_process.fetch_video(element, image_patch_size=4, return_video_metadata=True)
    visual = visual_inputs(prompt_with({"type": "video", **element}), policy_of("qwen2.5-vl").processor, {})
    assert torch.equal(visual.videos[0], torch.as_tensor(expected))
    assert {name: visual.metadata[0][name] for name in facts} == facts  # pyrefly: ignore[bad-index, not-iterable]


def test_the_model_gets_the_times_of_the_frames(clip: str) -> None:
    media = media_of({"type": "video", "video": clip}, video=SMALL)
    assert media["video_grid_thw"].tolist() == [[2, 8, 8]]  # four frames, two by two
    assert media["second_per_grid_ts"].tolist() == pytest.approx(
        [2 * 30 / 4 / 25]
    )  # frames every 30 / 4 of 25 a second


def test_frames_of_a_variable_rate_are_sampled_by_time(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 8, times=[0, 1, 2, 3, 4, 5, 6, 200])
    fps = open_video(str(path)).fps
    part = {"type": "video", "video": str(path), "nframes": 4, **SMALL}
    visual = visual_inputs(prompt_with(part), policy_of("qwen2.5-vl").processor, {})
    frames = [Image.fromarray(frame.permute(1, 2, 0).byte().numpy()) for frame in visual.videos[0]]
    assert levels(frames) == [0, 6, 6, 6]  # after 0, 2, 5 and 7 eighths of 2 seconds; the last comes at the end
    assert visual.metadata[0]["fps"] == pytest.approx(fps)


@pytest.mark.parametrize(
    ("option", "grid"),
    [
        ({}, [1, 6, 6]),
        ({"max_pixels": 256}, [1, 4, 4]),
        ({"min_pixels": 96 * 96}, [1, 24, 24]),
        ({"resized_height": 16, "resized_width": 48}, [1, 4, 12]),
    ],
    ids=str,
)
@pytest.mark.parametrize("model", ["qwen2.5-vl", "qwen3-vl"])
def test_image_options_decide_the_size(model: str, option: dict[str, Any], grid: list[int]) -> None:
    part = {"type": "image", "image": picture(64, 64), **option}
    assert media_of(part, model=model)["image_grid_thw"].tolist() == [grid]


def test_an_image_without_options_next_to_one_with_options_keeps_its_size() -> None:
    first, second = ({"type": "image", "image": picture(64, 64), **option} for option in ({"max_pixels": 256}, {}))
    assert media_of(first, second)["image_grid_thw"].tolist() == [[1, 4, 4], [1, 6, 6]]


@pytest.mark.parametrize(
    ("option", "grid"),
    [
        ({}, [4, 10, 10]),
        ({"nframes": 2}, [1, 10, 10]),
        ({"video_start": 0.0, "video_end": 1.5}, [2, 10, 10]),  # 2 frames a second: frames 0 to 3
        ({"sample_fps": 4.0, "video_end": 0.75}, [2, 10, 10]),
        ({"max_pixels": 1024}, [4, 8, 8]),
        (SMALL, [4, 8, 8]),
    ],
    ids=str,
)
def test_video_options_decide_frames_and_size(option: dict[str, Any], grid: list[int]) -> None:
    media = media_of({"type": "video", "video": frames(), **option})
    assert media["video_grid_thw"].tolist() == [grid]
    fps = option.get("sample_fps", 2.0)
    assert media["second_per_grid_ts"].tolist() == pytest.approx([2 / fps * (4 if "nframes" in option else 1)])


def test_options_of_a_row_override_those_of_the_policy(clip: str) -> None:
    part = {"type": "video", "video": clip, "nframes": 2}
    assert media_of(part, video={"fps": 10.0, **SMALL})["video_grid_thw"].tolist() == [[1, 8, 8]]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (
            {"type": "image", "nframes": 4},
            "row 0: the option 'nframes' of the image is not supported; allowed: min_pixels",
        ),
        (
            {"type": "image", "max_pixels": "many"},
            "'max_pixels' of the image must be a positive number, got 'many'",
        ),
        ({"type": "image", "resized_height": 16}, "needs both resized_height and resized_width"),
        ({"type": "image", "min_pixels": 9, "max_pixels": 4}, "'min_pixels' of the image is 9, above 'max_pixels'"),
        ({"type": "video", "fps": 1, "nframes": 2}, "set fps or nframes of the video, not both"),
        ({"type": "audio", "audio_start": 1}, "'audio_start' of the audio is not supported"),
    ],
)
def test_options_that_cannot_be_honored_are_an_error_of_the_row(part: dict[str, Any], reason: str) -> None:
    media = {"image": picture(), "video": frames(), "audio": {"array": np.zeros(99), "sampling_rate": 99}}
    with pytest.raises(DataError, match=reason):
        prompt_with({**part, part["type"]: media[part["type"]]})


def test_options_that_a_model_does_not_use_are_an_error() -> None:
    with pytest.raises(
        DataError, match=r"has max_pixels as media options, which Gemma3ImageProcessor\w* does not support"
    ):
        media_of({"type": "image", "image": picture(64, 64), "max_pixels": 256}, model="gemma3")
    with pytest.raises(DataError, match="fps is not supported for a list of frames: give their rate as sample_fps"):
        media_of({"type": "video", "video": frames(), "fps": 4.0})
    with pytest.raises(ValueError, match="has no options nframe; allowed are min_pixels"):
        LanguageSettings(video={"nframe": 4})


def test_coordinates_are_in_the_size_of_the_options() -> None:
    part = {"type": "image", "image": picture(120, 60), "resized_height": 56, "resized_width": 112}
    frame = Coordinates(frame="resized", reference_frame="original").of_model(prompt_with(part))
    assert (frame.width, frame.height) == (112, 56)
    part = {"type": "image", "image": picture(1120, 560), "max_pixels": 28 * 28 * 8}
    for coordinates in (Coordinates(pixels=[3136, 10**6]), Coordinates(factor=8, pixels=[256, 10**6])):
        frame = coordinates.of_model(prompt_with(part))
        assert (frame.width, frame.height) == (112, 56)  # 2 : 1, 6272 pixels
    with pytest.raises(DataError, match="the size of the resized image is needed"):
        Coordinates().of_model(prompt_with(part))


def test_coordinates_have_the_size_of_the_models_image() -> None:
    part = {"type": "image", "image": picture(120, 60), "max_pixels": 1024}
    grid = media_of(part)["image_grid_thw"][0]
    frame = Coordinates(pixels=[256, 2304], factor=8).of_model(prompt_with(part))
    assert (frame.width, frame.height) == (4 * int(grid[2]), 4 * int(grid[1]))


def brightness(samples: list[Sample]) -> list[float]:
    """The mean of the row's video plus the share of vowels in the answer."""
    means = [np.mean([np.asarray(frame) for frame in frames_of_video(s.prompt.videos[0])]) / 255 for s in samples]
    return [float(mean) + sum(map((s.text or "").count, "aeiou")) / 10 for mean, s in zip(means, samples, strict=True)]


def test_the_rate_of_a_list_of_frames_is_that_of_its_video(tmp_path: Path) -> None:
    """At 4 frames per second the pairs of Qwen2.5-VL last 0.5 s, at the 2 of a list 1 s."""
    images = frames(4)
    images[0].save(tmp_path / "a.png")
    row = {"prompt": "p", "video": types.Video(["a.png", *images[1:]], 4.0)}
    located = prompt_of_row(row, "prompt", where="row 0", folder=tmp_path)
    encoder = policy_of("qwen2.5-vl", video=SMALL)._encoder
    prompts = [Prompt("p", videos=[types.Video(images, 4.0)]), located, Prompt("p", videos=[images])]
    media = [encoder(prompt).media for prompt in prompts]
    assert [tensors["second_per_grid_ts"].tolist() for tensors in media] == [[0.5], [0.5], [1.0]]
    assert all(torch.equal(tensors["pixel_values_videos"], media[0]["pixel_values_videos"]) for tensors in media)


@pytest.mark.nightly
def test_a_run_trains_on_video_files_and_scores_them(tmp_path: Path) -> None:
    for name in "ab":
        write_video(tmp_path / f"{name}.mp4", 12 if name == "a" else 8)
    rows = [{"prompt": "what moves", "video": "a.mp4"}, {"prompt": "what is this", "videos": ["b.mp4"]}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    policy = policy_of("qwen2.5-vl", video=SMALL)
    before = [parameter.detach().clone() for parameter in policy.trainable]
    config = {
        "output": str(tmp_path / "run"),
        "steps": 1,
        "rollout": {"prompts_per_step": 2, "group_size": 4},
        "update": {"optimizer": {"lr": 1e-3}},
        "runtime": {"device": "cpu"},
    }
    Trainer(policy, {"brightness": brightness}, load_prompts(tmp_path / "rows.jsonl"), config).train()
    assert any(not torch.equal(old, new) for old, new in zip(before, policy.trainable, strict=True))
    step = json.loads(next(tmp_path.rglob("metrics.jsonl")).read_text().splitlines()[0])
    assert step["reward/brightness/mean"] > 0.2


def test_every_form_of_a_video_is_the_same_to_the_model(clip: str) -> None:
    encoder = policy_of("qwen2.5-vl", video=SMALL)._encoder
    stored = Dataset.from_dict({"prompt": ["p"], "video": [{"bytes": Path(clip).read_bytes(), "path": None}]})
    (from_dataset,) = load_prompts(stored.cast_column("video", Video()))
    forms = [Prompt("p", videos=[video]) for video in (clip, Path(clip), Path(clip).as_uri(), Path(clip).read_bytes())]
    first, *others = (encoder(prompt).media["pixel_values_videos"] for prompt in [*forms, from_dataset])
    assert all(torch.equal(first, other) for other in others)


def test_a_broken_video_ends_no_run_silently(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("no video")
    with pytest.raises(DataError, match=r"a.mp4 cannot be opened as a video \(InvalidDataError"):
        media_of({"type": "video", "video": str(tmp_path / "a.mp4")})
