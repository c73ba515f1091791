"""The page of rewards: what it says of them, and that it is current."""

from __future__ import annotations

import pytest
from rich.console import Console
from typer.testing import CliRunner

from mmgrpo import cli
from mmgrpo.build import build_rewards
from mmgrpo.catalogue import MARK, page_with_catalogue
from mmgrpo.config import RewardConfig
from mmgrpo.errors import ConfigError
from mmgrpo.loading import CONFIGS
from mmgrpo.registry import REWARDS, resolve

PAGE = CONFIGS.resolve().parent / "docs" / "rewards.md"
WITHOUT_MODEL = [
    f"mmgrpo.rewards.{room}" for room in ("answers", "quantities", "mathematics", "grounding", "structure", "lengths")
]
NEEDED = {
    "overlong": {"max_length": 10, "margin": 2},
    "cosine_length": {"max_length": 10},
    "json_schema": {"keys": {"a": "any"}},
}


def test_page_is_current():
    assert PAGE.read_text() == page_with_catalogue(PAGE.read_text()), (
        "regenerate it: python -m mmgrpo.catalogue docs/rewards.md"
    )


def test_a_section_has_settings_and_labelled_lines():
    section = page_with_catalogue("# Head").partition("### overlong\n")[2].partition("\n### ")[0]
    assert "`{name: overlong, max_length: .., margin: ..}`" in section
    assert "* Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13.\n* Traps: never positive" in section
    assert "`max_length`" in section
    assert "``" not in section


def test_what_stands_before_the_mark_stays():
    page = page_with_catalogue("# Head\n\nText.")
    assert page.startswith(f"# Head\n\nText.\n\n{MARK}\n")
    assert page_with_catalogue(page) == page


@pytest.mark.parametrize("name", REWARDS)
def test_every_reward_says_what_it_is(name: str):
    assert (resolve("rewards", name).__doc__ or "").startswith(("Reward", "Evaluation"))


@pytest.mark.parametrize("name", [name for name, target in REWARDS.items() if target.split(":")[0] in WITHOUT_MODEL])
def test_what_needs_no_model_is_built_from_a_configuration_and_says_its_range(name: str):
    (reward,) = build_rewards([RewardConfig.model_validate({"name": name, **NEEDED.get(name, {})})])
    assert reward.name == name
    assert "Range: " in (resolve("rewards", name).__doc__ or "")


def test_a_setting_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match=r"reward number: .*'relativ'; it takes \['column', 'extract', 'which'"):
        build_rewards([RewardConfig.model_validate({"name": "number", "relativ": 0.1})])


def test_the_command_lists_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli, "console", Console(width=200))
    output = CliRunner().invoke(cli.app, ["rewards"]).output
    assert "math_verify" in output
    assert "equals the reference as a mathematical expression" in output
