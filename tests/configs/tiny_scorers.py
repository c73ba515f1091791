"""Tiny random checkpoints of the classes that the recipes' rewards load, named in place of the hub's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import open_clip
from PIL import Image

from mmgrpo.config import RunConfig
from mmgrpo.config.rewards import EvaluationRewardConfig
from tests.rewards.test_image_reward import save_image_reward
from tests.rewards.test_video_align import trained as save_video_align
from tests.tiny import judges, language_models, listeners

Reward = TypeVar("Reward", bound=EvaluationRewardConfig)


def read(image: Image.Image) -> str:
    """A substitute for an OCR engine, since none is installed: reads an a in an image whose corner is bright."""
    corner = image.convert("L").getpixel((0, 0))
    return "a" if isinstance(corner, int) and corner > 127 else ""


class TinyScorers:
    """Makes the checkpoints once, in a folder."""

    def __init__(self, folder: Path) -> None:
        names = ("clip", "owl", "open_clip", "hps", "image_reward", "vlm", "clap", "general_clap", "video_align")
        clip, owl, plain, tuned, image_reward, vlm, clap, general, video_align = (folder / name for name in names)
        for path in (clip, owl, plain, tuned, image_reward, vlm, clap, general, video_align):
            path.mkdir()
        judges.save_clip(clip)
        judges.save_owl(owl)
        language_models.save("qwen2.5-vl", vlm)
        self._made_on_use = {
            clap: lambda: listeners.save_clap(clap),
            general: lambda: listeners.save_clap(general, seed=1),
            video_align: lambda: save_video_align(video_align),
        }
        judges.save_open_clip(plain)
        judges.save_open_clip(tuned, seed=1)
        architecture = folder / "tiny-clip.json"
        architecture.write_text(json.dumps(judges.OPEN_CLIP))
        open_clip.add_model_config(architecture)
        self._settings: dict[str, dict[str, Any]] = {
            "pick_score": {"model": str(clip), "processor": str(clip)},
            "clip_score": {"model": f"local-dir:{plain}"},
            "hps_v2": {"checkpoint": str(tuned / "open_clip_pytorch_model.bin"), "model": "tiny-clip"},
            "image_reward": {
                "checkpoint": str(save_image_reward(image_reward)),
                "tokenizer": str(image_reward),
            },
            "compositional": {"model": str(owl), "clip_model": str(clip), "threshold": 0.0, "counting_threshold": 0.0},
            "image_similarity": {"model": str(clip)},
            "vlm_judge": {"model": str(vlm)},
            "clap_score": {"model": str(clap)},
            "general_clap_score": {"model": str(general)},
            "video_align": {
                "checkpoint": str(video_align),
                "template": str(video_align / "template.txt"),
                "dtype": "float32",
            },
            "ocr_accuracy": {"engine": f"python:{__name__}:read"},
        }

    def in_place_of_the_hubs(self, config: RunConfig) -> RunConfig:
        """The configuration with other checkpoints in its rewards."""
        assert config.evaluation is not None
        evaluation = config.evaluation.model_copy(update={"rewards": self._all(config.evaluation.rewards)})
        return config.model_copy(update={"rewards": self._all(config.rewards), "evaluation": evaluation})

    def _all(self, rewards: Sequence[Reward]) -> tuple[Reward, ...]:
        kinds: list[Any] = [type(reward) for reward in rewards]
        tiny = [self._tiny(reward.model_dump(exclude_unset=True)) for reward in rewards]
        return tuple(kind.model_validate(values) for kind, values in zip(kinds, tiny, strict=True))

    def _tiny(self, values: str | dict[str, Any]) -> dict[str, Any]:
        values = {"name": values} if isinstance(values, str) else values
        within = {"of": self._tiny(values["of"])} if "of" in values else {}
        label = values["name"] if within else str(values.get("label"))  # one of another reward may have its name
        settings = self._settings.get(label, self._settings.get(values["name"], {}))
        for folder in [folder for folder in self._made_on_use if str(folder) in settings.values()]:
            self._made_on_use.pop(folder)()
        return {**values, **within, **settings}
