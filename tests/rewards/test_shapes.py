from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from mmgrpo.examples.pipelines import SHAPE_WORDS, pass_patches_through, shapes_pipeline
from mmgrpo.examples.shapes import (
    CELL,
    PAPER,
    SIDE,
    Group,
    Scene,
    SceneObject,
    SceneVerifier,
    conditions,
    draw,
    drawn_scenes,
    held_out_shape_prompts,
    objects_in,
    scenes,
    shape_prompts,
    split,
)
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.errors import DataError, PolicyError
from mmgrpo.types import Prompt, Sample

SCENE = Scene(Group(2, "red", "circle"), "above", Group(1, "blue", "square"))


def _scores(image: Image.Image, scene: Scene = SCENE) -> tuple[float | None, float | None]:
    sample = Sample(Prompt(scene.caption, columns={"scene": scene.caption}), group=0, member=0, image=image)
    return SceneVerifier()([sample])[0], SceneVerifier(all=True)([sample])[0]


@pytest.mark.nightly
def test_image_of_every_scene_meets_all_conditions() -> None:
    rng = Random(0)
    assert len(scenes()) == 972  # 27 groups x 2 relations x 18 groups of another color
    assert all(all(conditions(scene, objects_in(draw(scene, rng))).values()) for scene in scenes())


def test_objects_have_their_color_shape_and_place() -> None:
    # the centers of cells are at 5.5, 17.5 and 29.5
    objects = objects_in(draw(SCENE, Random(3)))
    assert sorted((item.color, item.shape) for item in objects) == [
        ("blue", "square"),
        ("red", "circle"),
        ("red", "circle"),
    ]
    rows = {item.color: item.row for item in objects}
    assert rows["red"] in (5.5, 17.5)
    assert rows["blue"] in (17.5, 29.5)
    assert rows["red"] < rows["blue"]


@pytest.mark.parametrize(
    ("scene", "score"),
    [
        (Scene(Group(2, "red", "circle"), "above", Group(1, "blue", "square")), 1.0),
        (Scene(Group(3, "red", "circle"), "above", Group(1, "blue", "square")), 0.75),  # first: a surplus
        (Scene(Group(1, "red", "circle"), "above", Group(1, "blue", "square")), 0.75),  # first
        (Scene(Group(1, "blue", "square"), "above", Group(2, "red", "circle")), 0.75),  # relation
        (Scene(Group(2, "red", "triangle"), "above", Group(1, "blue", "square")), 0.5),  # first, only
        (Scene(Group(2, "green", "circle"), "above", Group(1, "blue", "square")), 0.25),  # second alone is met
        (Scene(Group(2, "blue", "square"), "left of", Group(1, "green", "triangle")), 0.0),
    ],
)
def test_each_condition_is_a_quarter_of_the_score(scene: Scene, score: float) -> None:
    assert _scores(draw(scene, Random(1))) == (score, float(score == 1.0))


def test_scraps_and_marks_are_further_objects() -> None:
    image = draw(SCENE, Random(4))
    pen = ImageDraw.Draw(image)
    used = {(int(item.row // CELL), int(item.column // CELL)) for item in objects_in(image)}
    row, column = next((r, c) for r in range(3) for c in range(3) if (r, c) not in used)
    pen.rectangle((column * CELL + 4, row * CELL + 4, column * CELL + 8, row * CELL + 8), fill=(42, 92, 214))
    small = objects_in(image)[-1]
    assert isinstance(small, SceneObject)
    assert _scores(image)[1] == 0.0


def test_blank_and_noisy_images_have_no_objects_and_score_for_nothing_but_the_absence_of_others() -> None:
    assert _scores(Image.new("RGB", (SIDE, SIDE), PAPER)) == (0.25, 0.0)
    noise = np.random.RandomState(0).randint(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
    assert _scores(Image.fromarray(noise))[1] == 0.0


def test_a_moderately_noisy_scene_is_still_read() -> None:
    pixels = np.asarray(draw(SCENE, Random(5)), np.float32)
    noise = np.random.RandomState(0).normal(0, 25, pixels.shape)
    assert _scores(Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))) == (1.0, 1.0)


def test_samples_without_image_or_column_are_not_scored() -> None:
    prompt = Prompt(SCENE.caption, columns={"scene": SCENE.caption})
    image = draw(SCENE, Random(0))
    samples = [Sample(prompt, group=0, member=0), Sample(Prompt("a"), group=0, member=1, image=image)]
    assert SceneVerifier()(samples) == [None, None]


def test_held_out_scenes_are_in_neither_training() -> None:
    training, held_out = split()
    assert (len(training), len(held_out)) == (874, 98)  # of 486 pairs of groups, 49 with both relations
    hidden = {prompt.columns["scene"] for prompt in held_out_shape_prompts()}
    assert hidden == {scene.caption for scene in held_out}
    assert not hidden & {prompt.columns["scene"] for prompt in shape_prompts()}
    assert not hidden & {example.prompt.columns["scene"] for example in drawn_scenes(2000)}


def test_examples_show_their_captions() -> None:
    examples = drawn_scenes(200)
    samples = [Sample(example.prompt, group=0, member=0, image=example.image) for example in examples]
    assert SceneVerifier(all=True)(samples) == [1.0] * 200
    with pytest.raises(DataError, match="num_images must be at least 1, got 0"):
        drawn_scenes(0)


def test_every_word_of_the_captions_is_a_token() -> None:
    tokenizer = shapes_pipeline().tokenizer
    words = {word for scene in scenes() for word in scene.caption.split()}
    assert words == set(SHAPE_WORDS)
    longest = max((scene.caption for scene in scenes()), key=lambda caption: len(caption.split()))
    assert tokenizer.unk_token_id not in tokenizer(longest)["input_ids"]
    assert len(tokenizer(longest)["input_ids"]) <= tokenizer.model_max_length


def test_untrained_model_passes_its_input_through_and_the_autoencoder_keeps_colors() -> None:
    pipeline = shapes_pipeline()
    transformer = pipeline.transformer.eval()
    state = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        predicted = transformer(
            hidden_states=state,
            encoder_hidden_states=torch.randn(2, 10, 64),
            pooled_projections=torch.randn(2, 64),
            timestep=torch.full((2,), 1000.0),
        ).sample
    # the difference of two predictions leaves out what the position embedding adds
    similarity = torch.cosine_similarity((predicted[0] - predicted[1]).ravel(), (state[0] - state[1]).ravel(), dim=0)
    assert similarity > 0.95
    pixels = torch.from_numpy(np.asarray(draw(SCENE, Random(0)), np.float32).copy()).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.no_grad():
        decoded = pipeline.vae.decode(pipeline.vae.encode(pixels).latents).sample
    assert (decoded - pixels).abs().max() < 0.05


def test_patches_that_are_larger_than_the_model_is_wide_raise_an_error() -> None:
    transformer = shapes_pipeline().transformer
    transformer.pos_embed.proj = torch.nn.Conv2d(3, 64, kernel_size=6, stride=6)
    with pytest.raises(PolicyError, match="108 values do not pass through a width of 64"):
        pass_patches_through(transformer)


@pytest.mark.nightly
def test_the_quickstart_runs(tmp_path: Path) -> None:
    """With a reward that differs within each group, since an untrained model draws nothing that is counted."""
    rewards = json.dumps([{"name": "scene_verifier"}, {"name": "brightness"}])
    small = ["update.warmup.steps=3", "steps=2", "rollout.prompts_per_step=4", "evaluation.prompts.limit=4"]
    lines = trained(tmp_path, [*small, f"rewards={rewards}"])
    assert [{*lines[0]} & {"eval/held_out_scenes/mean", "eval/conditions/mean"}] == [
        {"eval/held_out_scenes/mean", "eval/conditions/mean"}
    ]


@pytest.mark.slow
def test_the_quickstart_learns(tmp_path: Path) -> None:
    scores = [line["eval/held_out_scenes/mean"] for line in trained(tmp_path, ["steps=16"])]
    assert scores[0] <= 0.5
    assert scores[-1] >= scores[0] + 0.2


def trained(output: Path, overrides: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The evaluations of a run."""
    result = CliRunner().invoke(app, ["train", "quickstart/shapes-image", *overrides, f"output={output}"])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in (output / "shapes-image" / "evaluation.jsonl").read_text().splitlines()]
