"""Recipes of generators on stand-ins of their prompts; ``test_smoke.py`` trains them on these."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.config.loading import load_config, shipped
from tests.configs.generator_data import EDITS, FLOW_GRPO, GENEVAL, standin_overrides, write_rows
from tests.configs.standin_data import prompts_of

PICK_SCORE = {
    "prompts": "a photograph of patterdale dog driving a land rover car toy in the cave lava,terrier",
    "evaluation": "a jung male cyborg with white hair",
}
OCR = {"prompts": 'A sign that says "a"', "evaluation": 'A ring with the inscription "Forever Yours", etched'}
HPD = {"prompts": "A red cube on a table.", "evaluation": "A cat in a hat"}
FIRST_PROMPTS: Mapping[str, Mapping[str, str]] = {
    "sd3.5-flow-grpo-pick-score": PICK_SCORE,
    "sd3.5-flow-grpo-fast": PICK_SCORE,
    "sd3.5-flow-grpo-ocr": OCR,
    "wan-flow-grpo": OCR,
    "flux-dance-grpo": HPD,
    "flux-mix-grpo": HPD,
    "kontext-flow-grpo-counting": dict.fromkeys(("prompts", "evaluation"), "Change the number of cats to two."),
    "kontext-nft-judged": {"prompts": "let the cat wear a hat", "evaluation": "have there be a red cube"},
    "wan-dance-grpo": {
        "prompts": "static image of video gamer on top of the world",
        "evaluation": "a dog runs",
    },
    "stable-audio-flow-grpo": {"prompts": "a red cube falls", "evaluation": "a red cat"},
}
"""The texts of the first prompt of each recipe's stand-in."""

COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "kontext-flow-grpo-counting": {key: EDITS[0][key] for key in ("tag", "include", "exclude")},
    "kontext-nft-judged": {"img_id": "0", "turn_index": 1},
    "stable-audio-flow-grpo": {"audiocap_id": 0, "youtube_id": "yt0", "start_time": 0},
}
"""Columns of the first training prompt, for the rewards."""


def test_every_recipe_of_a_generator_has_its_prompts_in_small() -> None:
    recipes = {name.removeprefix("recipes/") for name in shipped("recipes") if not name.endswith("-one-gpu")}
    assert {name for name in recipes if not name.startswith("qwen")} == {*FIRST_PROMPTS, "sd3.5-flow-grpo-geneval"}


@pytest.mark.parametrize("name", FIRST_PROMPTS)
def test_rows_of_the_source_become_prompts(name: str, tmp_path: Path) -> None:
    config = load_config(f"recipes/{name}")
    prompts, held_out = prompts_of(load_config(f"recipes/{name}", standin_overrides(config, tmp_path)))
    assert {"prompts": prompts[0].text, "evaluation": held_out[0].text} == FIRST_PROMPTS[name]
    assert len(prompts) == 4  # a line that begins with # is a prompt too
    expected = COLUMNS.get(name, {})
    assert {key: prompts[0].columns[key] for key in expected} == expected
    assert {len(prompt.images) for prompt in (*prompts, *held_out)} == {int(name.startswith("kontext"))}


def test_prompts_of_geneval_have_the_schema_of_the_published_ones(tmp_path: Path) -> None:
    write_rows(tmp_path / "train_metadata.jsonl", GENEVAL)
    source = {"prompts.source": str(tmp_path / "train_metadata.jsonl")}
    (count, colors), _ = prompts_of(load_config("recipes/sd3.5-flow-grpo-geneval", source))
    assert count.text == "a photo of two wine glasses"
    assert colors.columns["include"] == GENEVAL[1]["include"]
    generated, _ = prompts_of(load_config("recipes/sd3.5-flow-grpo-geneval"))
    assert {key for prompt in generated for key in prompt.columns} == {"tag", "include", "exclude"}


def test_files_of_repositories_are_those_of_one_commit() -> None:
    sources = [load_config(f"recipes/{name}").prompts for name in FIRST_PROMPTS]
    urls = {prompts.source for prompts in sources if prompts and str(prompts.source).startswith("https")}
    assert len(urls) == 4
    assert f"{FLOW_GRPO}/pickscore/train.txt" in urls
    assert all(len(url.split("/")[5]) == 40 for url in urls if url)
