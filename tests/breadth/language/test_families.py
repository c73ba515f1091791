"""A test for every row of docs/design/breadth-language.md; one of them daily, all of them nightly."""

from __future__ import annotations

import pytest
import transformers

from tests.breadth.language.families import families, untried
from tests.breadth.language.outcome import NOT_SUPPORTED, PLAIN, SHARED, SINGLE, WRONG
from tests.breadth.language.table import NOT_TRIED, PAGE, page, tried, version, written
from tests.policies.families import daily

HANDFUL = {
    "paligemma": SHARED,  # reads its prompt both ways
    "qwen3.5-vl": SINGLE,
    "t5": PLAIN,
    "roberta": NOT_SUPPORTED,  # its generate and its plain call count positions otherwise
}


@pytest.mark.parametrize("name", daily(HANDFUL, "t5"))
def test_a_few_families_match_the_table(name: str) -> None:
    result = tried(families()[name])
    assert result.verdict == HANDFUL[name], result.message
    assert written()[name].verdict == HANDFUL[name]


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(families()))
def test_every_family_matches_the_table(name: str) -> None:
    result = tried(families()[name])
    assert result.verdict == written()[name].verdict, result.message


def test_the_table_is_that_of_the_families() -> None:
    assert set(written()) == set(families())
    result, made = PAGE.read_text(encoding="utf-8"), page(written(), version())
    if version() != transformers.__version__:  # another release has other classes that were not tried
        result, made = result.partition(NOT_TRIED)[0], made.partition(NOT_TRIED)[0]
    assert result == made


def test_every_class_of_the_library_is_tried_or_has_a_reason() -> None:
    listed = [name for names in untried().values() for name in names]
    tried = {family.architecture for family in families().values()}
    assert len(listed) == len(set(listed))
    assert not tried & set(listed)
    assert "Emu3ForConditionalGeneration" in {*tried, *listed}
    for family in families().values():
        assert f"| {family.name} | {family.architecture} |" in PAGE.read_text(encoding="utf-8")


def test_no_family_is_trained_wrongly() -> None:
    assert not [name for name, result in written().items() if result.verdict == WRONG]
    assert sum(result.exact for result in written().values()) >= 200
