"""Prompt templates of members: masked images, bare prompts, answers of peers."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mmgrpo.data.history import History
from mmgrpo.data.prompt_templates import fill_template, opening, peer_answer, solution_prefix, template
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.methods.views.papo import masked_image
from mmgrpo.methods.views.vogue import bare, noised_image
from mmgrpo.types import Prompt, Sample

WHITE = Prompt("what is it", images=[Image.new("RGB", (40, 30), "white")] * 2, columns={"answer": "a"})


def prompt_images(prompt_template, member: int = 0, seed: int = 3) -> list[np.ndarray]:
    prompt = prompt_template(WHITE, member, History(seed=seed))
    assert prompt is not None
    assert (prompt.text, prompt.columns) == (WHITE.text, WHITE.columns)
    return [np.asarray(image) for image in prompt.images]


def test_masked_patches_are_black_complete_and_keyed() -> None:
    first, second = prompt_images(masked_image(share=0.5, patch=10))
    blocks = first.reshape(3, 10, 4, 10, 3)
    assert set(np.unique(blocks.min((1, 3, 4)))) == {0, 255}
    assert (blocks.min((1, 3, 4)) == blocks.max((1, 3, 4))).all()  # a patch is all black or unchanged
    assert not (first == second).all()
    assert (first == prompt_images(masked_image(share=0.5, patch=10))[0]).all()
    for other in (
        prompt_images(masked_image(share=0.5, patch=10), member=1)[0],
        prompt_images(masked_image(share=0.5), seed=4)[0],
    ):
        assert not (first == other).all()
    shared = masked_image(share=0.5, patch=10, per_member=False)
    assert (prompt_images(shared, member=0)[0] == prompt_images(shared, member=1)[0]).all()


def test_the_share_is_of_patches() -> None:
    large = Prompt("", images=[Image.new("RGB", (140, 140), "white")])
    prompt_template = masked_image(share=0.6, patch=1)
    prompt = prompt_template(large, 0, History())
    assert prompt is not None
    assert (np.asarray(prompt.images[0]) == 0).mean() == pytest.approx(
        0.6, abs=0.02
    )  # 19,600 patches: deviation 0.0035
    for share, expected in ((0.0, 255), (1.0, 0)):
        assert {int(pixel) for image in prompt_images(masked_image(share=share)) for pixel in np.unique(image)} == {
            expected
        }


def test_noise_keeps_the_share_of_the_signal() -> None:
    gray = Prompt("", images=[Image.new("RGB", (200, 200), (160, 160, 160))])
    prompt = noised_image(share=0.01)(gray, 0, History())
    assert prompt is not None
    pixels = np.asarray(prompt.images[0]) / 127.5 - 1
    assert pixels.mean() == pytest.approx(np.sqrt(0.99) * (160 / 127.5 - 1), abs=2e-3)
    assert pixels.std() == pytest.approx(0.1, abs=2e-3)
    assert (prompt_images(noised_image(share=0.0))[0] == 255).all()


def test_without_images_the_view_does_not_apply() -> None:
    assert masked_image()(Prompt("words alone"), 0, History()) is None
    assert noised_image(share=0.5)(Prompt("words alone"), 0, History()) is None


def test_noise_applies_at_random_to_a_member_or_a_group() -> None:
    """Each of 400 members, or groups, separately."""
    prompt = Prompt("what is it", images=[Image.new("RGB", (2, 2))])
    alone, together = noised_image(share=0.5, chance=0.25), noised_image(share=0.5, chance=0.25, per_member=False)
    assert 70 < sum(alone(prompt, member, History(seed=1)) is not prompt for member in range(400)) < 130
    groups = [{together(prompt, member, History(seed=seed)) is prompt for member in (0, 1)} for seed in range(400)]
    assert {len(group) for group in groups} == {1}
    assert 70 < sum(False in group for group in groups) < 130
    assert noised_image(share=0.5, chance=0.0)(prompt, 0, History()) is prompt


def test_the_bare_prompt_is_itself() -> None:
    assert bare()(WHITE, 1, History()) is WHITE


def history(*rewards: float | None, texts: tuple[str, ...] = ("zero", "one", "two")) -> History:
    samples = [Sample(WHITE, 0, member, text=text) for member, text in enumerate(texts)]
    return History(samples=samples, rewards=rewards)


def test_a_peers_answer_is_the_first_right_one_of_another() -> None:
    prompt_template = peer_answer(text="{prompt}|{answer}", at_least=0.5)
    prompts = [prompt_template(WHITE, member, history(1.0, 0.0, 0.5)) for member in range(3)]
    assert [prompt.text for prompt in prompts if prompt] == ["what is it|two", "what is it|zero", "what is it|zero"]
    assert [prompt_template(WHITE, member, history(None, 1.0, 0.4)) is None for member in range(3)] == [
        False,
        True,
        False,
    ]
    wrong = peer_answer(text="{prompt}|{answer}", at_least=0.5, wrong_alone=True)
    assert [wrong(WHITE, member, history(1.0, 0.0, 0.5)) is None for member in range(3)] == [True, False, True]


def test_inserted_answers_are_stripped_and_not_filled_again() -> None:
    thoughts = ("<think>so\nso</think> {answer} {nothing}", "x", "y")
    prompt_template = peer_answer(text="{prompt}|{answer}", without=r"<think>.*?</think>\s*")
    prompt = prompt_template(WHITE, 1, history(1.0, 0.0, 0.0, texts=thoughts))
    assert prompt is not None
    assert prompt.text == "what is it|{answer} {nothing}"
    echo = template(text="{prompt} {answer}")(Prompt("say {answer}", columns={"answer": "a"}), 0, History())
    assert echo is not None
    assert echo.text == "say {answer} a"


def test_unsupported_contexts_raise() -> None:
    for wrong in (
        lambda: masked_image(share=1.5),
        lambda: masked_image(patch=0),
        lambda: noised_image(share=-0.1),
        lambda: noised_image(share=0.1, chance=2.0),
        lambda: peer_answer(text="no place"),
        lambda: peer_answer(without="("),
    ):
        with pytest.raises(ConfigError):
            wrong()
    pictures = History(samples=[Sample(WHITE, 0, 0), Sample(WHITE, 0, 1)], rewards=[1.0, 1.0])
    with pytest.raises(DataError, match="no text"):
        peer_answer()(WHITE, 0, pictures)


def prefix_of(prompt_template, prompt: Prompt) -> str | None:
    result = prompt_template(prompt, 0, History(seed=0))
    assert result is not None
    return result.prefix


@pytest.mark.parametrize(
    ("share", "between", "begun"),
    [
        (0.75, " ", "a first step\n\nand "),
        (0.5, "\n\n", "a first step\n\n"),
        (1.0, "\n\n", "a first step\n\nand more\n\n"),
    ],
)
def test_a_solution_begins_by_words_or_by_steps(share: float, between: str, begun: str) -> None:
    prompt = Prompt("why", columns={"solution": "a first step\n\nand more"})
    assert prefix_of(solution_prefix(share=share, between=between), prompt) == begun


def test_a_template_has_the_prompt_or_a_column_in_its_place() -> None:
    result = template(text="{other}?")(Prompt("why", columns={"other": "how"}), 0, History(seed=0))
    assert result is not None
    assert result.text == "how?"
    with pytest.raises(ConfigError, match="COLUMN"):
        template(text="the same for all")


def test_an_answer_may_open_with_a_text() -> None:
    assert prefix_of(opening(text="I will be short. "), Prompt("why")) == "I will be short. "
    assert prefix_of(solution_prefix(share=0.0), Prompt("why", columns={"solution": "a b"})) is None
    with pytest.raises(ConfigError, match="begins with, got none"):
        opening(text="")
    with pytest.raises(ConfigError, match="between, the separator"):
        solution_prefix(share=0.5, between="")


def test_text_with_a_column_without_a_value_is_an_error() -> None:
    prompt = Prompt("two", columns={"level": 3, "hint": None})
    assert fill_template(prompt, "{prompt} at {level}: {more}", {"more": "{level}"}) == "two at 3: {level}"
    for name in ("hint", "absent"):
        with pytest.raises(DataError, match=rf"no value in the column '{name}', .* it has \['level'\]"):
            fill_template(prompt, f"{{{name}}}", {})
