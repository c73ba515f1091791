"""The table in docs/ agrees with the installed library and the policy."""

from __future__ import annotations

import pytest

from tests.breadth import assembly
from tests.breadth.denoising import page, read_page
from tests.breadth.trial import Outcome, try_class
from tests.policies.families import daily

QUICK = (
    "DiTPipeline",
    "FluxPipeline",
    "KandinskyV22CombinedPipeline",
    "SkyReelsV2DiffusionForcingPipeline",  # steps a copy of its scheduler for each frame
    "StableAudio3Pipeline",
    "WanPipeline",
)
OUTSIDERS_EXACT = 126  # of the 182 that outsiders built


@pytest.mark.nightly  # imports every pipeline that there is; what is installed changes seldom
def test_the_table_has_every_class_of_the_installed_library() -> None:
    listed, exported = set(read_page()), set(assembly.pipeline_classes())
    assert not exported - listed, "new: python -m tests.breadth.denoising NAME... > docs/design/breadth-denoising.md"
    assert not listed - exported, "no longer exported: generate the table again"


@pytest.mark.nightly  # likewise
def test_recipes_are_of_existing_classes() -> None:
    assert not set(assembly.recipes()) - set(assembly.pipeline_classes())


def test_the_page_is_generated_from_its_rows() -> None:
    rows = read_page()
    assert page(rows).splitlines()[12:] == page(dict(reversed(rows.items()))).splitlines()[12:]
    assert sum(outcome.verdict == "exact" for outcome in rows.values()) > OUTSIDERS_EXACT
    assert not [name for name, outcome in rows.items() if outcome.verdict == "inexact"]


@pytest.mark.parametrize("name", daily(QUICK, "StableAudio3Pipeline"))
def test_a_handful_of_rows(name: str) -> None:
    _check(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(read_page()))
def test_row(name: str) -> None:
    _check(name)


def _check(name: str) -> None:
    written, result = read_page()[name], try_class(name)
    assert (result.verdict, result.options) == (written.verdict, written.options), result.reason


def test_a_row_is_read_as_it_was_written() -> None:
    outcome = Outcome("not supported", ("sampler: native", "lora.targets: all-linear"), "a reason with a | bar")
    (line,) = [line for line in page({"FluxPipeline": outcome}).splitlines() if line.startswith("| `")]
    assert (
        line == "| `FluxPipeline` | not supported | sampler: native; lora.targets: all-linear | a reason with a / bar |"
    )
