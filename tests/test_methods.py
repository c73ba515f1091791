"""The method index: what it says of the shipped methods, of other packages' methods, and that its page is current."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mmgrpo.config.loading import CONFIGS, load_config
from mmgrpo.docgen.methods import method_index, methods_page
from mmgrpo.errors import ConfigError

PAGE = CONFIGS.resolve().parent / "docs" / "methods.md"

THEIRS = """
method:
  name: theirs
  title: Theirs
  paper: "2601.00001"
  sources: {objective.surrogate: eq. 3}
  deviations: [None of note.]
rollout: {group_size: 4, prompts_per_step: 2}
objective: {surrogate: {name: cispo, low: null, high: 4.0}, ratio_level: segment, aggregate: decision_mean}
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """A package of others with one method, as pip leaves it."""
    path = folder / "theirs.yaml"
    path.write_text(text)
    (folder / "their_methods.py").write_text(f"THEIRS = {str(path)!r}\n")
    info = folder / "their_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-methods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mmgrpo.methods]\ntheirs = their_methods:THEIRS\n")
    monkeypatch.delitem(sys.modules, "their_methods", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    return path


def test_index_says_what_a_method_is_made_of() -> None:
    row = {row.name: row for row in method_index()}["grpo-guard"]
    assert (row.include, row.title, row.paper) == ("methods/grpo-guard", "GRPO-Guard", "2510.22319")
    assert row.composition == (
        "flow_sde 0.7 in 10 steps; window all; 48 groups of 24; advantage group within 5; "
        "clipped (low 2e-06, high 2e-06) of the normalised ratio; weight inverse_step; 2 updates a rollout"
    )
    assert row.sources[1] == ("policy.strength", "0.7", "flow_grpo, config/base.py, sample.noise_level")


def test_included_name_loads() -> None:
    for row in method_index():
        config = load_config(row.include, {"policy": None})
        assert config.method is not None
        assert config.method.title == row.title


def test_methods_of_other_packages_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = method_index()
    path = install(tmp_path, monkeypatch, THEIRS)
    *first, theirs = method_index()
    assert first == own
    assert (theirs.include, theirs.name) == (str(path), "theirs")
    assert theirs.composition == (
        "2 groups of 4; advantage group; cispo (low None, high 4) by segment; decision_mean; 1 update a rollout"
    )
    assert theirs.sources == (("objective.surrogate", "cispo (low None, high 4)", "eq. 3"),)
    assert "- None of note." in methods_page([theirs])


def test_file_without_a_method_section_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "rollout: {group_size: 4}\n")
    with pytest.raises(ConfigError, match="has no method: section"):
        method_index()


def test_source_of_a_key_that_is_not_set_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, THEIRS.replace("objective.surrogate:", "objective.surogate:"))
    with pytest.raises(ConfigError, match=r"no key 'objective\.surogate'"):
        method_index()


def test_page_is_current() -> None:
    assert PAGE.read_text() == methods_page(row for row in method_index() if row.include.startswith("methods/")), (
        "regenerate it: python -m mmgrpo.docgen.methods > docs/methods.md"
    )
