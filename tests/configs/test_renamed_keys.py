"""A key of an earlier version is an error that gives its new name."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmgrpo.config.loading import load_config, validated
from mmgrpo.config.validating import RENAMED
from mmgrpo.errors import ConfigError


@pytest.mark.parametrize("old", RENAMED)
def test_an_earlier_key_fails_with_the_new_one(old: str, tmp_path: Path) -> None:
    message = rf"unknown key '{old}'; it is now {RENAMED[old]}"
    with pytest.raises(ConfigError, match=message):
        load_config("quickstart/digits-image", [f"{old}=true"])
    section, key = old.split(".")
    file = tmp_path / "run.yaml"
    file.write_text(f"{section}: {{{key}: true}}\n")
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_the_new_name_of_recentre_is_read() -> None:
    assert validated({"objective": {"normalise_ratio": True}}).objective.normalise_ratio
