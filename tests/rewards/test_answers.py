from __future__ import annotations

import pytest
from mmgrpo.rewards.text.answers import Classification, EditDistance, ExactMatch, YesNo
from mmgrpo.rewards.text.choices import MultipleChoice

from mmgrpo.errors import ConfigError
from tests.rewards.written import explained, score_of, scores_of, wrote


def test_exact_match_only_normalizes():
    match = ExactMatch()
    texts = ("red  cube\n", "\uff32ED cube", "red cube.", "a red cube", "")
    assert [score_of(match, text, "Red Cube") for text in texts] == [1, 1, 0, 0, 0]
    assert score_of(ExactMatch(ignore_case=False), "red cube", "Red Cube") == 0
    assert score_of(match, "7.0", 7) == 0
    assert score_of(match, "grey", ["gray", "grey"]) == 1


def test_exact_match_takes_the_answer_out_of_the_text():
    text = "<think>4?</think> <answer>5</answer>"
    assert score_of(ExactMatch(extract="tag"), text, 5) == 1
    assert score_of(ExactMatch(), text, 5) == 0
    assert score_of(ExactMatch(extract="tag"), "5", 5) == 0
    assert score_of(ExactMatch(extract="boxed"), r"\boxed{\frac{1}{2}}", r"\frac{1}{2}") == 1
    assert score_of(ExactMatch(extract="line"), "4\n5\n", "5") == 1


def test_reference_may_be_in_tags_and_in_another_column():
    sample = wrote("3", solution="<answer> 3 </answer>")
    assert scores_of(ExactMatch(column="solution"), [sample]) == [1]
    assert ExactMatch()([sample]) == [None]


def test_samples_without_text_or_reference_are_not_scored():
    samples = [wrote(None, "B"), wrote("B"), wrote("B", "B"), wrote("B", {"a": 1}), wrote("B", [])]
    for reward in (ExactMatch(), MultipleChoice(), Classification(), EditDistance()):
        assert scores_of(reward, samples) == [None, None, 1, None, None]


def test_an_unparsed_reference_is_logged_once(caplog: pytest.LogCaptureFixture):
    reward = YesNo(column="first_answer")
    samples = [wrote("yes", first_answer="perhaps"), wrote("yes", first_answer="yes")]
    assert scores_of(reward, samples) == scores_of(reward, samples) == [None, 1]
    assert caplog.text.count("yes_no cannot read 1 of 2 references in column 'first_answer', such as 'perhaps'") == 1


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(b)", "B"),
        ("**B**", "B"),
        ("B. a dog", "B"),
        ("Answer: B", "B"),
        ("The answer is A.", "A"),
        ("The answer is A because it flies.", "A"),
        ("A is correct", "A"),
        ("A: a dog", "A"),
        ("(A) a dog", "A"),
        (r"\text{C}", "C"),
        ("A dog is shown, so B", "B"),  # the article
        ("It runs. A dog does. So it is C.", "C"),
        ("B and again B", "B"),
        ("Cats and Dogs, A+ and C++, a B-52 of the U.S.A., D'accord, vitamin-C: D", "D"),
        ("It's a fat cat", None),
        ("A dog.", None),
        ("ABCD", None),
        ("", None),
    ],
)
def test_letters(text: str, letter: str | None):
    choice = MultipleChoice()
    scores = {option: score_of(choice, text, option) for option in "ABCD"}
    assert scores == {option: float(option == letter) for option in "ABCD"}


def test_several_letters_are_wrong_unless_the_last_counts():
    text = "A is too small and B too dark, so the answer is C."
    for letter in "ABC":
        assert score_of(MultipleChoice(), text, letter) == 0
        assert score_of(MultipleChoice(several="last"), text, letter) == float(letter == "C")
    assert score_of(MultipleChoice(), "A or B", "B") == 0
    assert score_of(MultipleChoice(extract="tag"), f"{text} <answer>C</answer>", "C") == 1


def test_the_pronoun_is_no_letter_and_letters_are_the_options():
    many = MultipleChoice(letters="ABCDEFGHIJ")
    assert score_of(many, "I think it is B", "B") == 1
    assert score_of(many, "I", "I") == score_of(many, "The answer is (I)", "I") == 1
    assert score_of(MultipleChoice(letters="AB"), "C", "B") == 0
    assert score_of(MultipleChoice(letters="AB"), "C", "C") is None
    assert score_of(MultipleChoice(), "B", "(B) a dog") == 1
    with pytest.raises(ConfigError, match="capital letters such as ABCD, got 'abc'"):
        MultipleChoice(letters="abc")


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("Yes.", True),
        ("yes, there is no doubt", True),
        ("No: yesterday it was", False),
        ("I would say yes", True),
        ("False", False),
        ("Know nothing, eyes shut", None),
        ("Yes or no? ", None),
        ("yes/no", None),
        ("It may be yes, it may be no", None),
        ("", None),
    ],
)
def test_yes_and_no(text: str, truth: bool | None):
    assert [score_of(YesNo(), text, reference) for reference in ("Yes", "no", True, False)] == [
        float(truth is True), float(truth is False), float(truth is True), float(truth is False),
    ]  # fmt: skip


def test_classes_are_complete_words():
    exact = Classification()
    assert score_of(exact, "The polar_bear!", "Polar bear") == 1
    assert score_of(exact, "a polar bear on ice", "polar bear") == 0
    assert score_of(exact, "female", "male") == 0
    assert score_of(exact, "sofa", ["couch", "sofa"]) == 1
    among = Classification(labels=["bear", "polar bear", "male", "female"])
    assert score_of(among, "A polar bear on ice, a polar bear.", "polar bear") == 1
    assert score_of(among, "A polar bear on ice", "bear") == 0
    assert score_of(among, "a bear or a polar bear", "bear") == 0
    assert score_of(among, "She is female", "male") == 0
    assert score_of(among, "Nothing", "male") == 0
    with pytest.raises(ConfigError, match="list of classes, got 'bear'"):
        Classification(labels="bear")


def test_letters_next_to_letters_and_in_other_scripts():
    for text in ("A B", "A and B", "\uff21\u3001\uff22", "(a) (b)"):
        assert score_of(MultipleChoice(), text, "B") == score_of(MultipleChoice(), text, "A") == 0
    for text in (
        "\u9009B\uff0c\u56e0\u4e3a",
        "\u7b54\u6848\u662f\uff22\u3002",
        "\uff08\uff42\uff09",
        "<think>A or C?</think>B",
    ):
        assert score_of(MultipleChoice(), text, "B") == 1
    assert score_of(MultipleChoice(), "<think>B", "B") == 0


def test_references_of_no_word_are_not_scored():
    assert score_of(Classification(), "", "?!") is None


def test_yes_and_no_is_neither():
    for text in ("yes and no", "No, and yes", "true and false"):
        assert score_of(YesNo(), text, "yes") == score_of(YesNo(), text, "no") == 0
    assert score_of(YesNo(), "Yes and there is no dog", "yes") == 1


def test_edit_distance_by_hand():
    # kitten -> sitting: two substitutions and an insertion over 7 characters
    assert score_of(EditDistance(), "kitten", "sitting") == pytest.approx(1 - 3 / 7)
    assert score_of(EditDistance(floor=0.6), "kitten", "sitting") == 0
    # one word of three changed, one added: 2 over the longer 4
    assert score_of(EditDistance(unit="words"), "the red cat", "the black cat sat") == 0.5
    assert score_of(EditDistance(), "STOP \n now", ["go", "stop now"]) == 1
    assert score_of(EditDistance(), "", "abc") == 0
    assert score_of(EditDistance(), "a" * 10_001, "a") == 0


def test_edit_distance_is_symmetric_and_bounded():
    texts = ["", "a", "abc", "acb", "a quick brown", "naïve café", "日本"]
    for text in texts:
        for other in texts:
            value = score_of(EditDistance(), text, other)
            assert value == score_of(EditDistance(), other, text)
            assert 0 <= value <= 1
            assert (value == 1) == (text == other)


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"ExactMatch\.extract must be one of none, tag, boxed, line, got 'tags'"):
        ExactMatch(extract="tags")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ConfigError, match=r"floor must be in \[0, 1\], got 2"):
        EditDistance(floor=2)


def test_the_parsed_answer_is_in_the_explanation():
    match = ExactMatch(extract="tag")
    assert explained(match, wrote("so <answer> Blue </answer>", "red")) == {"parsed": "Blue", "reference": "red"}
    assert explained(match, wrote("so blue", "red")) == {"parsed": None, "reference": "red"}
    assert explained(ExactMatch(), wrote("x" * 500, "red"))["parsed"] == "x" * 199 + "\u2026"
