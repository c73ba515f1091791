from __future__ import annotations

import numpy as np
import pytest
from mmgrpo.examples.digits import (
    PARTNER,
    DigitVerifier,
    HeldOutJudge,
    Precision,
    Recall,
    StrokeSpread,
    coverage,
    digit_prompts,
    digit_questions,
    held_out_digit_questions,
    load_split,
    mislabeled_examples,
    misread_digits,
    to_image,
    to_pixels,
)
from PIL import Image

from mmgrpo.errors import DataError
from mmgrpo.types import Prompt, Sample


def image_sample(image: Image.Image | None, **columns: object) -> Sample:
    return Sample(Prompt("a handwritten digit", columns=columns), group=0, member=0, image=image)


def real(images: np.ndarray, labels: np.ndarray) -> list[Sample]:
    return [image_sample(to_image(pixels), digit=int(label)) for pixels, label in zip(images, labels, strict=True)]


@pytest.fixture(scope="module")
def train() -> list[Sample]:
    return real(load_split().train, load_split().train_labels)


@pytest.fixture(scope="module")
def held_out() -> list[Sample]:
    return real(load_split().held_out, load_split().held_out_labels)


def mean(values: list[float | None]) -> float:
    return float(np.mean([value for value in values if value is not None]))


class TestSplit:
    def test_is_the_real_data_split_by_class(self):
        split = load_split()
        # 1,797 scans; 20 % rounded up is 360; 178, 182, ... 180 scans per digit, a fifth of each
        assert split.train.shape == (1437, 8, 8)
        assert split.train.dtype == np.float32
        assert np.bincount(split.held_out_labels).tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]
        assert np.unique(split.train).tolist() == [level / 8 - 1 for level in range(17)]

    def test_no_image_is_in_both_parts(self):
        split = load_split()
        assert not {image.tobytes() for image in split.train} & {image.tobytes() for image in split.held_out}

    def test_is_shared_and_cannot_be_changed(self):
        assert load_split() is load_split()
        with pytest.raises(ValueError, match="read-only"):
            load_split().train[0] = 0


class TestPixels:
    def test_all_gray_levels_survive_eight_bits(self):
        levels = load_split().train[:200]
        back = np.stack([to_pixels(to_image(image)) for image in levels])
        assert np.array_equal(np.rint(back * 8) / 8, levels)
        assert np.abs(back - levels).max() <= 0.5 / 127.5 + 1e-6

    @pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA"])
    def test_size_and_mode_do_not_matter(self, mode: str):
        small = to_image(load_split().train[3])
        large = small.resize((64, 64), Image.Resampling.NEAREST).convert(mode)
        assert np.array_equal(to_pixels(large), to_pixels(small))

    def test_values_beyond_the_range_are_clipped(self):
        assert np.asarray(to_image(np.array([[-3, -1, 1, 3]], dtype=np.float32))).tolist() == [[0, 0, 255, 255]]

    def test_more_than_eight_bits_raise(self):
        with pytest.raises(DataError, match=r"8-bit.*got mode F"):
            to_pixels(Image.new("F", (8, 8)))


class TestJudges:
    def test_verifier_reads_unseen_digits(self, train: list[Sample], held_out: list[Sample]):
        assert mean(DigitVerifier()(held_out)) >= 0.97
        assert mean(DigitVerifier()(train)) >= 0.99

    def test_judge_reads_digits_it_was_not_fitted_on(self, train: list[Sample]):
        assert mean(HeldOutJudge()(train)) >= 0.975

    @pytest.mark.parametrize("make", [DigitVerifier, HeldOutJudge])
    def test_the_wrong_digit_scores_zero(self, make: type, held_out: list[Sample]):
        wrong = [image_sample(s.image, digit=(s.prompt.columns["digit"] + 1) % 10) for s in held_out]
        assert mean(make()(wrong)) <= 0.02

    @pytest.mark.parametrize("make", [DigitVerifier, HeldOutJudge])
    def test_does_not_judge_without_image_or_column(self, make: type):
        seven = to_image(load_split().train[load_split().train_labels == 7][0])
        samples = [
            image_sample(None, digit=7),
            image_sample(seven),
            image_sample(seven, digit=7),
            image_sample(seven, digit=None),
        ]
        assert make()(samples) == [None, None, 1.0, None]

    @pytest.mark.parametrize("digit", ["7", 10, -1, 7.0, True])
    def test_refuses_a_column_that_is_no_digit(self, digit: object):
        with pytest.raises(DataError, match="integer from 0 to 9"):
            DigitVerifier()([image_sample(Image.new("L", (8, 8)), digit=digit)])


class TestDiversity:
    def test_coverage_by_hand(self):
        # on a line: 0, 1, 3 with k = 1 reach 1, 1 and 2 far, so they cover [-1, 2] and [1, 5]
        manifold = np.array([[0], [1], [3]], dtype=np.float32)
        points = np.array([[-1], [-1.5], [5], [5.5]], dtype=np.float32)
        assert coverage(points, manifold, 1) == 0.5
        # with k = 2 they reach 3, 2 and 3 far and cover [-3, 6]
        assert coverage(points, manifold, 2) == 1.0
        assert coverage(points, manifold, 3) is None

    def test_the_real_set_itself_is_complete(self, held_out: list[Sample]):
        assert Recall()(held_out) == [1.0] * 360
        assert Precision()(held_out) == [1.0] * 360
        assert mean(StrokeSpread()(held_out)) == pytest.approx(1.0, abs=1e-3)  # 8-bit rounding

    def test_other_real_digits_are_nearly_complete(self, train: list[Sample]):
        assert mean(Recall()(train[:400])) == pytest.approx(0.90, abs=0.03)
        assert mean(Precision()(train[:400])) == pytest.approx(0.94, abs=0.03)

    def test_one_image_has_precision_without_recall(self, train: list[Sample]):
        same = [image_sample(train[0].image, digit=1)] * 100
        assert (mean(Precision()(same)), mean(Recall()(same)), mean(StrokeSpread()(same))) == (1.0, 0.0, 0.0)

    def test_noise_has_recall_without_precision(self):
        rng = np.random.RandomState(0)
        noise = [image_sample(to_image(rng.choice([-1.0, 1.0], size=(8, 8))), digit=i % 10) for i in range(100)]
        assert mean(Precision()(noise)) == 0.0
        assert mean(Recall()(noise)) == 1.0  # points far apart have balls that reach everything
        assert mean(StrokeSpread()(noise)) > 2.0

    def test_half_the_contrast_is_half_the_spread(self):
        split = load_split()
        faded = real(split.held_out / 2, split.held_out_labels)
        assert mean(StrokeSpread()(faded)) == pytest.approx(0.5, abs=5e-3)

    def test_samples_without_an_image_are_left_out_of_the_set(self, held_out: list[Sample]):
        assert Recall()([*held_out, image_sample(None, digit=3)]) == [1.0] * 360 + [None]
        assert StrokeSpread()([held_out[0], image_sample(held_out[1].image)]) == [None, None]

    def test_too_few_images_have_no_radius(self, held_out: list[Sample]):
        assert Recall()(held_out[:3]) == [None] * 3
        assert None not in Recall()(held_out[:4])


class TestData:
    def test_prompts_name_their_digit(self):
        prompts = digit_prompts(per_digit=2)
        assert [prompt.columns["digit"] for prompt in prompts] == [*range(10), *range(10)]
        assert prompts[17].text == "a handwritten digit seven"

    def test_captions_are_wrong_at_the_configured_rate(self):
        examples = mislabeled_examples(0.45, seed=0)
        right = [e.prompt.columns["digit"] == e.prompt.columns["true_digit"] for e in examples]
        # 647 of 1,437 are redrawn, a tenth of them right by chance: 0.595 +- sqrt(647 * 0.1 * 0.9) / 1437 = 0.0053
        assert len(examples) == 1437
        assert np.mean(right) == pytest.approx(0.595, abs=3 * 0.0053)
        assert all(e.prompt.text == digit_prompts()[e.prompt.columns["digit"]].text for e in examples)

    def test_captions_follow_the_seed_and_the_images_do_not(self):
        first, again, other = (mislabeled_examples(0.45, seed) for seed in (1, 1, 2))
        assert [e.prompt for e in first] == [e.prompt for e in again]
        assert [e.prompt for e in first] != [e.prompt for e in other]
        assert first[5].image is not None
        assert np.abs(to_pixels(first[5].image) - load_split().train[5]).max() < 0.005

    def test_limits_of_the_fraction(self):
        assert all(e.prompt.columns["digit"] == e.prompt.columns["true_digit"] for e in mislabeled_examples(0.0))
        with pytest.raises(DataError, match=r"\[0, 1\], got 45"):
            mislabeled_examples(45)


class TestQuestions:
    def test_every_image_is_paired_with_its_digit(self):
        split = load_split()
        for questions, labels in (
            (digit_questions(), split.train_labels),
            (held_out_digit_questions(), split.held_out_labels),
        ):
            assert [question.columns["answer"] for question in questions] == [str(label) for label in labels]
            assert {question.text for question in questions} == {"which digit is shown ?"}

    def test_the_image_is_the_digit_and_no_evaluation_image_is_trained_on(self):
        split = load_split()
        assert to_pixels(digit_questions()[3].images[0]) == pytest.approx(
            split.train[3], abs=0.004
        )  # 8-bit levels are 2 / 255 apart
        training, unseen = (
            {question.images[0].tobytes() for question in questions}
            for questions in (digit_questions(), held_out_digit_questions())
        )
        assert len(training) == 1437
        assert len(unseen) == 360
        assert not training & unseen

    def test_partners_are_mutual_and_never_the_digit_itself(self):
        assert all(PARTNER[PARTNER[digit]] == digit != PARTNER[digit] for digit in range(10))

    def test_half_is_misread_and_a_third_lacks_tags(self):
        examples = misread_digits()
        answer = [(example.text or "").removeprefix("<answer>").removesuffix("</answer>") for example in examples]
        true = [example.prompt.columns["answer"] for example in examples]
        wrong = [(a, b) for a, b in zip(answer, true, strict=True) if a != b]
        assert len(wrong) == 718  # round(0.5 * 1437 = 718.5), to even
        assert all(int(a) == PARTNER[int(b)] for a, b in wrong)
        bare = [a == example.text for a, example in zip(answer, examples, strict=True)]
        assert sum(bare) == 431  # 0.3 * 1437
        # sampled separately: of the misread ones about 30 % lack tags as well
        both = sum(a and b != c for a, b, c in zip(bare, answer, true, strict=True))
        assert 180 < both < 250

    def test_misreading_follows_from_its_seed(self):
        texts = [[example.text for example in misread_digits(seed=seed)] for seed in (0, 0, 1)]
        assert texts[0] == texts[1] != texts[2]
        assert all(
            example.text == f"<answer>{example.prompt.columns['answer']}</answer>" for example in misread_digits(0, 0)
        )

    @pytest.mark.parametrize("shares", [(1.5, 0.0), (0.5, -0.1)])
    def test_shares_outside_their_range_raise(self, shares: tuple[float, float]):
        with pytest.raises(DataError, match=r"must be in \[0, 1\]"):
            misread_digits(*shares)
