"""The pages of rewards, and how the command shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from mmgrpo.cli import command_line as cli
from mmgrpo.cli import listings
from mmgrpo.config import RewardConfig
from mmgrpo.config.registry import REWARDS
from mmgrpo.docgen.reward_pages import (
    KINDS,
    OTHER_PACKAGES,
    by_kind,
    is_in,
    kind_of,
    page_of,
    reward_pages,
    summary_of,
)
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.training.build import build_rewards


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, ["rewards", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_every_reward_has_exactly_one_page():
    pages = reward_pages()
    assert set(pages) == {"index.md", *(f"{name}.md" for name in REWARDS)}
    assert (
        "\n## Answers\n\n| name | score |\n| --- | --- |\n| [`exact_match`](exact_match.md) | 1 if "
        in pages["index.md"]
    )
    assert pages["exact_match.md"] == page_of("exact_match")


def test_types_and_defaults_are_as_yaml_has_them():
    page = page_of("ocr_accuracy")
    assert "| `engine` | text or function | `rapidocr` |" in page
    assert "| `around` | `forgiven` or `counted` | `forgiven` |" in page
    assert "| `column` | text or null | `null` |" in page
    assert "| `of` | reward | required |" in page_of("frame_mean")
    assert "| `classes` | list of text | `[]` |" in page_of("compositional")


def test_labels_of_one_line_are_passages_of_their_own():
    page = page_of("overlong")
    assert "\n* **Units**: tokens of the completion, its end token included.\n* **Range**: -1 to 0.\n" in page
    assert "- {name: overlong, max_length: 1024, margin: 256}\n" in page


def test_every_reward_is_of_a_kind_and_every_module_of_a_kind_exists():
    assert sorted(name for kind, members in by_kind().items() if kind != OTHER_PACKAGES for name in members) == sorted(
        REWARDS
    )
    for rooms in KINDS.values():
        for room in rooms:
            assert any(is_in(target, room) for target in REWARDS.values()), room
    assert kind_of("elsewhere.answers:Reward") == OTHER_PACKAGES


@pytest.mark.parametrize("width", [80, 200])
def test_the_command_lists_them_by_kind_without_truncation(width: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listings, "console", Console(width=width))
    output = printed()
    assert "…" not in output
    words = " ".join(output.split())
    for kind, members in by_kind().items():
        assert kind in output
        for name in members:
            summary = re.sub(r"[`\\]", "", summary_of(name))
            assert f"{name} {summary}" in words
    lines = output.splitlines()
    assert max(map(len, lines)) <= width
    if width == 200:
        assert all(any(line.split()[:1] == [name] for line in lines) for name in REWARDS)
        assert len(lines) < len(REWARDS) + 3 * len(by_kind())


def test_the_command_shows_a_page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listings, "console", Console(width=100))
    output = printed("pick_score")
    assert "yuvalkirstain/PickScore_v1" in output
    assert "• Traps: optimizing it leads to glossy" in output


def test_an_unknown_name_is_answered_by_the_nearest():
    result = CliRunner().invoke(cli.app, ["rewards", "ocr_acuracy"])
    assert result.exit_code == 2
    assert "did you mean ocr_accuracy" in result.stderr
    with pytest.raises(UnknownNameError):
        page_of("ocr_acuracy")


def test_the_pages_need_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert "math-verify" in printed("math_verify")


def test_a_setting_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match=r"reward number: .*'relativ'; it takes \['column', 'extract', 'which'"):
        build_rewards([RewardConfig.model_validate({"name": "number", "relativ": 0.1})])
