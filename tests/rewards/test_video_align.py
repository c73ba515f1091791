"""VideoReward on tiny checkpoints saved as the published one is, held against peft's model with its LoRA apart."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmgrpo.rewards.video.video_align import VideoAlign, model_frames
from mmgrpo.rewards.video.video_align_checkpoint import Recipe, merged, plain_name
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode, functional
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.types import Sample
from tests.rewards.image_samples import drew, explanations, filmed, numbers
from tests.tiny import language_models

CLOSE = {"rel": 0, "abs": 1e-5}
TOKENS = ["<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>"]
TEMPLATE = "\nRate. Looks: <|VQ_reward|>\nMotion: <|MQ_reward|>\nFor {text_prompt}: <|TA_reward|>\n"
NORMS = {"VQ_mean": 0.5, "VQ_std": 2.0, "MQ_mean": -0.25, "MQ_std": 0.5, "TA_mean": 0.0, "TA_std": 4.0}
SIDES = (96, 88)  # of 60 x 56: enlarged by sqrt(128 * 64 / 3360) = 1.561 to 93.7 and 87.4, up to multiples of 8
TEXTS = ("a red cat", "two black dogs on the street")


def clip(seed: int, count: int = 24) -> list[Image.Image]:
    pixels = np.random.RandomState(seed).randint(0, 256, size=(count, 7, 8, 3)).astype(np.uint8)
    return [Image.fromarray(frame).resize((56, 60), Image.Resampling.BILINEAR) for frame in pixels]


VIDEOS = [clip(0), clip(1)]


def samples() -> list[Sample]:
    return [filmed(video, text) for video, text in zip(VIDEOS, TEXTS, strict=True)]


@dataclass(frozen=True, slots=True)
class Trained:
    folder: Path
    model: Any
    head: nn.Linear
    processor: Any


def trained(
    folder: Path, *, special: bool = True, outputs: int = 3, complete: bool = True, old: bool = True
) -> Trained:
    """A base model, LoRA of peft on its language model, and a head, saved as VideoAlign's trainer saves them."""
    from peft import LoraConfig, get_peft_model

    base = folder / "base"
    language_models.save("qwen2-vl", base)
    processor = AutoProcessor.from_pretrained(base)
    processor.tokenizer.add_tokens(TOKENS, special_tokens=True)
    torch.manual_seed(1)
    plain = AutoModelForImageTextToText.from_pretrained(base)
    plain.resize_token_embeddings(len(processor.tokenizer))
    names = [n for n, part in plain.named_modules() if isinstance(part, nn.Linear) and "language_model" in n]
    model: Any = get_peft_model(plain, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=names)).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    head = nn.Linear(model.config.text_config.hidden_size, outputs, bias=False)
    state = model.state_dict() | {"base_model.model.rm_head.weight": head.weight.detach()}
    save_checkpoint(folder, {old_name(name) if old else name: value for name, value in state.items()}, complete)
    explanations = {
        "data_config": {
            "fps": 2.0,
            "num_frames": None,
            "max_frame_pixels": 16384,
            "eval_dim": ["VQ", "MQ", "TA"],
            "prompt_template_type": "detailed_special" if special else "detailed",
            "sample_type": "uniform",
        },
        "model_config": {
            "model_name_or_path": str(base),
            "output_dim": outputs,
            "use_special_tokens": special,
            "reward_token": "special" if special else "last",
        },
        "peft_lora_config": {"lora_enable": True, "lora_r": 4, "lora_alpha": 8, "use_rslora": False},
        "inference_config": NORMS,
    }
    (folder / "model_config.json").write_text(json.dumps(explanations))
    (folder / "template.txt").write_text(TEMPLATE if special else "Rate {text_prompt}.")
    return Trained(folder, model, head, processor)


def old_name(name: str) -> str:
    """What transformers 4.45, which the published checkpoint was made with, called the tensor."""
    return name.replace(".model.language_model.", ".model.").replace(".model.model.visual.", ".model.visual.")


def save_checkpoint(folder: Path, state: dict[str, Tensor], complete: bool) -> None:
    for step in (5, 12):
        (folder / f"checkpoint-{step}").mkdir()
    latest = folder / "checkpoint-12"
    if complete:
        torch.save(state, latest / "model.pth")
        return
    lora = {name.replace(".default.", "."): value.contiguous() for name, value in state.items() if "lora_" in name}
    save_file(lora, latest / "adapter_model.safetensors")
    others = {name: value for name, value in state.items() if "embed_tokens" in name or "rm_head" in name}
    torch.save(others, latest / "non_lora_state_dict.pth")


def scores_of(made: Trained, frames: list[Image.Image], text: str, template: str, special: bool) -> list[float]:
    """By hand: 24 frames at 16 a second, of which 2 a second are 3, so 4, at 0, 7.67, 15.33 and 23."""
    pixels = torch.stack([torch.from_numpy(np.array(frames[i])) for i in (0, 8, 15, 23)]).permute(0, 3, 1, 2)
    pixels = functional.resize(pixels, list(SIDES), interpolation=InterpolationMode.BICUBIC, antialias=True)
    question = template.replace("{text_prompt}", text)
    content = [{"type": "video"}, {"type": "text", "text": question}]
    text_of_chat = made.processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    kinds = {"do_sample_frames": False, "do_resize": False}
    inputs = made.processor(text=[text_of_chat], videos=[pixels], return_tensors="pt", **kinds)
    length = inputs["input_ids"].shape[1]
    positions = torch.arange(length).expand(3, 1, length)
    with torch.no_grad():
        scores = made.model(
            input_ids=inputs["input_ids"],
            pixel_values_videos=inputs["pixel_values_videos"],
            video_grid_thw=inputs["video_grid_thw"],
            position_ids=positions,
            output_hidden_states=True,
        )
        out = made.head(scores.hidden_states[-1][0])
    if not special:
        return out[-1].tolist()
    ids = inputs["input_ids"][0].tolist()
    rows = [ids.index(token) for token in made.processor.tokenizer.convert_tokens_to_ids(TOKENS)]
    return [float(out[row, min(i, out.shape[1] - 1)]) for i, row in enumerate(rows)]


def reward(made: Trained, **settings: Any) -> VideoAlign:
    defaults = {"checkpoint": str(made.folder), "template": str(made.folder / "template.txt"), "dtype": "float32"}
    return VideoAlign(16, **{**defaults, **settings})  # pyrefly: ignore[bad-argument-type]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("video_align"))


def test_scores_are_those_of_the_model_it_was_saved_from(made: Trained) -> None:
    raw = [scores_of(made, video, text, TEMPLATE, True) for video, text in zip(VIDEOS, TEXTS, strict=True)]
    assert np.ptp(np.array(raw), axis=0).min() > 1e-2
    expected = [(vq - 0.5) / 2 + (mq + 0.25) / 0.5 + ta / 4 for vq, mq, ta in raw]
    assert numbers(reward(made)(samples())) == pytest.approx(expected, **CLOSE)
    assert numbers(reward(made, batch_size=1)(samples())) == pytest.approx(expected, **CLOSE)
    plain = reward(made, normalize=False, weights={"MQ": 2.0})(samples())
    assert numbers(plain) == pytest.approx([2 * mq for _, mq, _ in raw], **CLOSE)
    parts = [(explanation or {})["parts"] for explanation in explanations(plain)]
    assert [list(part) for part in parts] == [["VQ", "MQ", "TA"]] * 2
    np.testing.assert_allclose([list(part.values()) for part in parts], raw, atol=1e-4)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("special", "outputs", "complete", "old"), [(False, 3, True, True), (True, 1, False, True), (True, 3, False, False)]
)
def test_other_forms_of_checkpoint(tmp_path: Path, special: bool, outputs: int, complete: bool, old: bool) -> None:
    other = trained(tmp_path, special=special, outputs=outputs, complete=complete, old=old)
    template = (tmp_path / "template.txt").read_text()
    raw = [scores_of(other, video, text, template, special) for video, text in zip(VIDEOS, TEXTS, strict=True)]
    scores = reward(other, normalize=False)(samples())
    assert numbers(scores) == pytest.approx([sum(row) for row in raw], **CLOSE)


def test_lora_by_hand() -> None:
    """W + 2 * B A with A = (1, 2), B = (3, 4)^T: B A = ((3, 6), (4, 8))."""
    layer = "base_model.model.model.layers.0.mlp.up_proj"
    state = {
        f"{layer}.base_layer.weight": torch.ones(2, 2),
        f"{layer}.lora_A.default.weight": torch.tensor([[1.0, 2.0]]),
        f"{layer}.lora_B.default.weight": torch.tensor([[3.0], [4.0]]),
        "base_model.model.lm_head.weight": torch.ones(1),
    }
    scores = merged(state, 2.0, {})
    assert list(scores) == ["language_model.layers.0.mlp.up_proj.weight"]
    assert scores["language_model.layers.0.mlp.up_proj.weight"].tolist() == [[7, 13], [9, 17]]
    assert plain_name("base_model.model.visual.merger.mlp.0.weight") == "visual.merger.mlp.0.weight"
    del state[f"{layer}.lora_B.default.weight"]
    with pytest.raises(RewardError, match="no second half"):
        merged(state, 2.0, {})


def test_unsupported_samples_are_not_scored(made: Trained) -> None:
    video = VIDEOS[0]
    assert reward(made)([]) == []
    assert reward(made)([drew(video[0]), filmed(None), filmed(video[:1])]) == [None] * 3
    assert reward(made, text_column="caption")([filmed(video)]) == [None]
    assert not any(torch.is_tensor(score) for score in reward(made)(samples()))


def test_tokens_of_the_scores_in_a_prompt_do_not_count(made: Trained) -> None:
    marked, plain = reward(made)([filmed(VIDEOS[0], "a<|VQ_reward|> cat"), filmed(VIDEOS[0], "a cat")])
    assert float(marked or 0) == pytest.approx(float(plain or 0), **CLOSE)


@pytest.mark.parametrize(
    ("total", "fps", "num_frames", "indices"),
    [
        (24, 16.0, None, [0, 8, 15, 23]),
        (81, 16.0, None, [0, 9, 18, 27, 36, 44, 53, 62, 71, 80]),
        (5, 1.0, None, [0, 1, 3, 4]),
        (3, 1.0, None, [0, 2]),
        (9, 1.0, 5, [0, 3, 5, 8]),
        (9, 1.0, 40, list(range(9))),
    ],
)
def test_frames_that_the_model_gets(total: int, fps: float, num_frames: int | None, indices: list[int]) -> None:
    """81 frames at 16 a second are 5.06 seconds and 10.1 frames; 5 there are, rounded to 4 (2.5 is no even number)."""
    frames = [Image.new("RGB", (16, 16), (i, 0, 0)) for i in range(total)]
    recipe = Recipe(
        base="", special=True, fps=2.0, num_frames=num_frames, max_pixels=10**6, template="none", lora_scale=1, **NONE
    )
    model_inputs = model_frames(frames, recipe, fps, 8)
    assert model_inputs[:, 0, 0, 0].tolist() == indices
    assert model_inputs.shape[2:] == (96, 96)


NONE: dict[str, Any] = {"mean": None, "std": None}


def test_the_authors_file_of_templates_is_read_and_not_run(made: Trained, tmp_path: Path) -> None:
    path = tmp_path / "prompt_template.py"
    path.write_text(f'raise SystemExit\nDETAILED_PROMPT = "x"\nDETAILED_PROMPT_WITH_SPECIAL_TOKEN = """{TEMPLATE}"""\n')
    scores = reward(made, template=str(path))(samples())
    assert numbers(scores) == pytest.approx(numbers(reward(made)(samples())), **CLOSE)


def test_templates_that_do_not_fit_raise(made: Trained, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("prompt_template.py of github.com/KwaiVGI/VideoAlign")):
        reward(made, template=None)(samples())
    (tmp_path / "short.txt").write_text("{text_prompt} <|VQ_reward|>")
    with pytest.raises(ConfigError, match="once each"):
        reward(made, template=str(tmp_path / "short.txt"))(samples())


def test_invalid_checkpoints_raise(tmp_path: Path, made: Trained) -> None:
    with pytest.raises(RewardError, match="model_config"):
        reward(made, checkpoint=str(tmp_path))(samples())
    (tmp_path / "model_config.json").write_text((made.folder / "model_config.json").read_text())
    (tmp_path / "other.txt").touch()
    with pytest.raises(RewardError, match="checkpoint-<step>"):
        reward(made, checkpoint=str(tmp_path / "."))(samples())
    (tmp_path / "checkpoint-1").mkdir()
    torch.save({"base_model.model.rm_head.weight": torch.ones(3, 4)}, tmp_path / "checkpoint-1" / "model.pth")
    with pytest.raises(RewardError, match="lacks its head or the embeddings"):
        reward(made, checkpoint=str(tmp_path / ".." / tmp_path.name))(samples())


def test_invalid_settings_raise() -> None:
    with pytest.raises(ConfigError, match="VQ, MQ, TA"):
        VideoAlign(16, weights={"quality": 1})
    with pytest.raises(ConfigError, match="video_fps > 0"):
        VideoAlign(0)
