from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmgrpo.examples.digits import load_split, to_image, to_pixels
from mmgrpo.examples.edits import (
    EDITS,
    EditVerifier,
    HeldOutEditJudge,
    edit_prompts,
    held_out_edit_prompts,
    misinstructed_edits,
)
from PIL import Image
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config.loading import load_config
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt, Sample, Score

HELD_OUT_PROMPTS = held_out_edit_prompts()


def _source(prompt: Prompt) -> np.ndarray:
    return to_pixels(prompt.images[0])


def _construct(make: Callable[[Prompt], np.ndarray]) -> list[Sample]:
    return [
        Sample(prompt, group=n, member=0, image=to_image(make(prompt))) for n, prompt in enumerate(HELD_OUT_PROMPTS)
    ]


def _edited(prompt: Prompt) -> np.ndarray:
    return EDITS[prompt.columns["edit"]](_source(prompt))


def test_each_edit_of_a_known_image() -> None:
    source = np.full((8, 8), -1, dtype=np.float32)
    source[2, 5] = 0.5
    lit = {
        "mirror the digit": [(2, 2)],
        "move the digit left": [(2, 3)],
        "make the digit bold": [(1, 5), (2, 4), (2, 5), (2, 6), (3, 5)],
    }
    for edit, places in lit.items():
        assert list(zip(*np.nonzero(EDITS[edit](source) == 0.5), strict=True)) == places, edit
    assert EDITS["invert the digit"](source)[2, 5] == -0.5
    assert set(EDITS) == {*lit, "invert the digit"}


@pytest.mark.nightly
def test_true_edits_pass_and_others_do_not() -> None:
    verifier, judge = EditVerifier(), HeldOutEditJudge()
    right = _construct(_edited)
    assert verifier(right) == [1.0] * 360
    assert np.mean([value or 0.0 for value in judge(right)]) > 0.97
    untouched, next_of = _construct(_source), dict(zip(EDITS, [*list(EDITS)[1:], next(iter(EDITS))], strict=True))
    wrong = _construct(lambda prompt: EDITS[next_of[prompt.columns["edit"]]](_source(prompt)))
    for scorer in (verifier, judge):
        for samples in (untouched, wrong):
            assert np.mean([value or 0.0 for value in scorer(samples)]) < 0.02


def test_an_edit_of_another_digit_is_not_this_one_edited() -> None:
    others = HELD_OUT_PROMPTS[1:] + HELD_OUT_PROMPTS[:1]
    sources = {id(prompt): _source(other) for prompt, other in zip(HELD_OUT_PROMPTS, others, strict=True)}
    swapped = _construct(lambda prompt: EDITS[prompt.columns["edit"]](sources[id(prompt)]))
    assert np.mean([value or 0.0 for value in EditVerifier()(swapped)]) < 0.15
    assert np.mean([value or 0.0 for value in HeldOutEditJudge()(swapped)]) < 0.2


@pytest.mark.parametrize(("off", "expected"), [(0.3, 1.0), (0.5, 0.0)])
def test_the_tolerance_is_a_root_mean_square(off: float, expected: float) -> None:
    def shifted(prompt: Prompt) -> np.ndarray:
        target = _edited(prompt)
        return np.where(target > 0, target - off, target + off)  # every pixel by as much, to the middle

    values = [value or 0.0 for value in EditVerifier(tolerance=0.4)(_construct(shifted))]
    assert np.mean(values) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(
    "sample",
    [
        Sample(HELD_OUT_PROMPTS[0], group=0, member=0),
        Sample(
            Prompt("mirror the digit", columns=HELD_OUT_PROMPTS[0].columns),
            group=0,
            member=0,
            image=Image.new("L", (8, 8)),
        ),
        Sample(Prompt("mirror", images=HELD_OUT_PROMPTS[0].images), group=0, member=0, image=Image.new("L", (8, 8))),
    ],
)
def test_incomplete_samples_are_not_scored(sample: Sample) -> None:
    assert EditVerifier()([sample]) == [None]
    assert HeldOutEditJudge()([sample]) == [None]


@pytest.mark.nightly
def test_prompts_and_examples() -> None:
    assert len(edit_prompts()) == 4 * 1437
    assert [prompt.text for prompt in HELD_OUT_PROMPTS[:5]] == [*EDITS, next(iter(EDITS))]
    images = {to_pixels(prompt.images[0]).tobytes() for prompt in edit_prompts()}
    assert not images & {_source(prompt).tobytes() for prompt in HELD_OUT_PROMPTS}
    examples = misinstructed_edits(0.5)
    rows = zip(np.repeat(load_split().train, 4, axis=0), list(EDITS) * 1437, examples, strict=True)
    right = [example.prompt.text == edit for _, edit, example in rows]
    assert np.mean(right) == pytest.approx(0.625, abs=0.01)
    assert all(example.prompt.columns["edit"] == example.prompt.text for example in examples)
    assert all(
        example.prompt.text == edit for example, edit in zip(misinstructed_edits(0.0), list(EDITS) * 1437, strict=True)
    )


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: misinstructed_edits(1.5), r"must be in \[0, 1\], got 1.5"),
        (lambda: held_out_edit_prompts(91), "per_edit must be from 1 to 90, got 91"),
        (lambda: EditVerifier(0.0), "must be above 0, got 0.0"),
    ],
)
def test_numbers_out_of_range(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        refused()


def member_number(samples: Sequence[Sample]) -> list[float | Score | None]:
    """A reward that differs within each group."""
    return [float(sample.member) for sample in samples]


@pytest.mark.nightly
def test_the_quickstart_runs(tmp_path: Path) -> None:
    """With one more reward, since an untrained model is wrong everywhere, and rows of equal rewards are not scored."""
    rewards = [reward.model_dump(exclude_unset=True) for reward in load_config("quickstart/digits-edit").rewards]
    unequal = {"name": f"python:{__name__}:member_number", "label": "member_number"}
    small = ["update.warmup.steps=3", "steps=2", "rollout.prompts_per_step=4", "evaluation.prompts.limit=8"]
    folder = trained(tmp_path, [*small, f"rewards={json.dumps([*rewards, unequal])}"])
    assert all(line["policy/on_policy_gap"] < 1e-5 for line in lines(folder / "metrics.jsonl"))
    page = (folder / "report.html").read_text()
    assert [page.count(f'alt="input: {edit}"') > 1 for edit in EDITS] == [True] * 4


@pytest.mark.slow
def test_the_quickstart_learns(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    scores = [line["eval/held_out_edits/mean"] for line in lines(folder / "evaluation.jsonl")]
    assert scores[0] <= 0.65
    assert scores[-1] >= 0.9
    assert not (folder / "alerts.jsonl").exists()


def trained(output: Path, overrides: Sequence[str] = ()) -> Path:
    result = CliRunner().invoke(app, ["train", "quickstart/digits-edit", *overrides, f"output={output}"])
    assert result.exit_code == 0, result.output
    return output / "digits-edit"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
