"""Stand-ins for the prompts of the recipes of generators: rows of the schema of each source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Features, Value
from datasets import Image as ImageFeature
from PIL import Image

from mmgrpo.config import RunConfig
from tests.configs.standin_data import image_bytes, write_standin

FLOW_GRPO = "https://raw.githubusercontent.com/yifan123/flow_grpo/ac4c86e8cae021841f1fde853d340e0db67690dd/dataset"
MIX_GRPO = "https://raw.githubusercontent.com/Tencent-Hunyuan/MixGRPO/e5cdd6a427778d8c8b2e7a48ce16972141adbe7c/data"
VIDEO_PROMPTS = "https://raw.githubusercontent.com/XueZeyue/DanceGRPO/15cc71d53cc2e6e18a68ee607d5fb6ba9a99e344/assets/video_prompts.txt"
CONSISTENCY = (
    "https://raw.githubusercontent.com/Vchitect/VBench/2a3bd13bf2870e119527a8ebb351ae4d1c250339/prompts/"
    "prompts_per_dimension/overall_consistency.txt"
)
COUNTING = "flow_grpo/dataset/counting_edit"

LINES: Mapping[str, Sequence[str]] = {
    f"{FLOW_GRPO}/pickscore/train.txt": [
        "a photograph of patterdale dog driving a land rover car toy in the cave lava,terrier",
        "'a couple of soldier that are standing in front of a building, exterior of scifi temple",
        "a boat",
        "# 3",
    ],
    f"{FLOW_GRPO}/pickscore/test.txt": ["a jung male cyborg with white hair", "two lamps"],
    f"{FLOW_GRPO}/ocr/train.txt": ['A sign that says "a"', 'A "a" on a wall', 'A shop named "b"', 'A "Big A" pin'],
    f"{FLOW_GRPO}/ocr/test.txt": ['A ring with the inscription "Forever Yours", etched', 'A menu that reads "Try It"'],
    f"{MIX_GRPO}/prompts.txt": ["A red cube on a table.", "Two lamps", "A boat", "A dog"],
    f"{MIX_GRPO}/prompts_test.txt": ["A cat in a hat", "A tree"],
    VIDEO_PROMPTS: [
        "static image of video gamer on top of the world",
        "man from the back in the kitchen at home with a height of 178cm washing the dishes",
        "a cat is looking",
        "a boat",
    ],
    CONSISTENCY: ["a dog runs", "two lamps"],
}
"""Files of prompts, a prompt a line."""

GENEVAL = [
    {
        "tag": "counting",
        "include": [{"class": "wine glass", "count": 2}],
        "exclude": [{"class": "wine glass", "count": 3}],
        "prompt": "a photo of two wine glasses",
    },
    {
        "tag": "color_attr",
        "include": [
            {"class": "handbag", "count": 1, "color": "pink"},
            {"class": "scissors", "count": 1, "color": "black"},
        ],
        "prompt": "a photo of a pink handbag and a black scissors",
    },
]
"""Rows of flow_grpo's dataset/geneval/test_metadata.jsonl."""

EDITS = [
    {
        "tag": "counting",
        "include": [{"class": "cat", "count": count}],
        "exclude": [{"class": "cat", "count": count + 1}],
        "prompt": f"Change the number of cats to {word}.",
        "image": f"generated_images/{count}.png",
    }
    for count, word in enumerate(("two", "three", "four", "five"), start=2)
]
"""Rows of flow_grpo's dataset/counting_edit, as scripts/train_flux_kontext.py reads them."""

MAGIC_BRUSH = Features(
    {
        "img_id": Value("string"),
        "turn_index": Value("int32"),
        "source_img": ImageFeature(),
        "mask_img": ImageFeature(),
        "instruction": Value("string"),
        "target_img": ImageFeature(),
    }
)
"""Card of osunlp/MagicBrush."""


AUDIOCAPS = Features(
    {
        "audiocap_id": Value("int64"),
        "youtube_id": Value("string"),
        "start_time": Value("int64"),
        "caption": Value("string"),
    }
)
"""Card of d0rj/audiocaps."""


def standin_overrides(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Writes stand-ins of the prompts of a recipe, and returns the overrides that read them in place of its sources."""
    assert config.prompts is not None
    assert config.evaluation is not None
    assert config.evaluation.prompts is not None
    sections = {"prompts": config.prompts.source, "evaluation.prompts": config.evaluation.prompts.source}
    return {
        f"{key}.source": str(_written(source, folder / key))
        for key, source in sections.items()
        if source is not None and not source.startswith("python:")
    }


def _written(source: str, folder: Path) -> Path:
    """The stand-in of a source. Raises KeyError for a source without one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / source.rpartition("/")[2]
    if source in LINES:
        path.write_text("\n".join(LINES[source]) + "\n")
    elif source.startswith(COUNTING):
        write_rows(path, EDITS)
        for number, row in enumerate(EDITS):
            _image(folder / str(row["image"]), number)
    else:
        write_standin(path, source, *HUB[source])
    return path


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes an object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _image(path: Path, number: int) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.linear_gradient("L").resize((16, 16)).rotate(90 * number).save(path)


def _magic_brush(instructions: Sequence[str]) -> list[dict[str, Any]]:
    images = {"source_img": image_bytes("white", (16, 16)), "mask_img": image_bytes("gray", (16, 16))}
    images["target_img"] = image_bytes("black", (16, 16))
    return [
        {"img_id": str(number), "turn_index": 1, "instruction": text, **images}
        for number, text in enumerate(instructions)
    ]


def _audiocaps(captions: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"audiocap_id": number, "youtube_id": f"yt{number}", "start_time": 10 * number, "caption": text}
        for number, text in enumerate(captions)
    ]


HUB: Mapping[str, tuple[Mapping[str, Sequence[Mapping[str, Any]]], Features]] = {
    "osunlp/MagicBrush": (
        {
            "train": _magic_brush(["let the cat wear a hat", "add a dog", "make it night", "remove the boat"]),
            "dev": _magic_brush(["have there be a red cube", "add a lamp"]),
        },
        MAGIC_BRUSH,
    ),
    "d0rj/audiocaps": (
        {
            "train": _audiocaps(["a red cube falls", "a dog barks", "two lamps hum", "a boat"]),
            "validation": _audiocaps(["wind"]),
            "test": _audiocaps(["a red cat", "a bird sings"]),
        },
        AUDIOCAPS,
    ),
}
"""Splits and features of data sets of the hub."""
