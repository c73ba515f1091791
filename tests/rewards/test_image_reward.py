"""ImageReward from a checkpoint in the published layout, compared with numbers of the authors' code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmgrpo.rewards.images.image_reward import ImageReward
from transformers import BertTokenizer

from mmgrpo.errors import RewardError
from tests.rewards.image_samples import drew, noise
from tests.tiny import judges

WIDTH, MLP, PATCH, PATCHES = 128, 96, 8, 16  # two heads of 64, an image of 32 x 32 pixels
MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*MARKS, "a", "the", "red", "cat", "two", "dogs", "on", "black", "horse", "three")

PICTURES = (noise(0, 64, 40), noise(1, 33, 70))
TEXTS = ("a red cat", "two dogs on the horse " * 20)  # the second is beyond 35 tokens
AUTHORS = (-0.9597052, -0.9765388)
"""What github.com/THUDM/ImageReward's BLIP and head gave for these tensors, images and texts."""


def published() -> dict[str, torch.Tensor]:
    """Tensors by the names that ImageReward.pt has, at random; two layers of vision and two of text."""
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, WIDTH),
        "pos_embed": (1, PATCHES + 1, WIDTH),
        "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (WIDTH,),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
    }
    for block in ("blocks.0.", "blocks.1."):
        linears = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH)}
        linears |= {"mlp.fc1": (MLP, WIDTH), "mlp.fc2": (WIDTH, MLP)}
        shapes |= layer(block, linears, ("norm1", "norm2"))  # pyrefly: ignore[bad-argument-type]
    visual = {f"blip.visual_encoder.{name}": shape for name, shape in shapes.items()}
    read: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(WORDS), WIDTH),
        "embeddings.position_embeddings.weight": (40, WIDTH),
    } | layer("embeddings.", {}, ("LayerNorm",))
    for number in range(2):
        linears = {"intermediate.dense": (MLP, WIDTH), "output.dense": (WIDTH, MLP)}
        norms = ["output.LayerNorm"]
        for attention in ("attention", "crossattention"):
            linears |= {f"{attention}.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
            linears[f"{attention}.output.dense"] = (WIDTH, WIDTH)
            norms.append(f"{attention}.output.LayerNorm")
        read |= layer(f"encoder.layer.{number}.", linears, norms)  # pyrefly: ignore[bad-argument-type]
    shapes = visual | {f"blip.text_encoder.{name}": shape for name, shape in read.items()}
    generator = torch.Generator().manual_seed(0)
    tensors = {name: 0.2 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    tensors |= {name: 1 + value for name, value in tensors.items() if "orm" in name and name.endswith("weight")}
    return (
        tensors
        | {
            "blip.text_encoder.embeddings.position_ids": torch.arange(40)[None],
            "blip.text_proj.weight": torch.zeros(4, WIDTH),
        }
        | judges.head_tensors(WIDTH, "mlp.layers.")
    )


def layer(
    prefix: str, linears: dict[str, tuple[int, ...]], norms: list[str] | tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    shapes = {f"{prefix}{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{prefix}{name}.bias": shape[:1] for name, shape in linears.items()}
    return shapes | {f"{prefix}{norm}.{part}": (WIDTH,) for norm in norms for part in ("weight", "bias")}


def save_image_reward(folder: Path) -> Path:
    """The checkpoint, with BERT's tokenizer in its folder."""
    torch.save(published(), folder / "ImageReward.pt")
    BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)}).save_pretrained(folder)
    return folder / "ImageReward.pt"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_image_reward(tmp_path)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_scores_are_those_of_the_authors_code(checkpoint: Path, batch_size: int) -> None:
    reward = ImageReward(str(checkpoint), str(checkpoint.parent), batch_size=batch_size)
    samples = [drew(image, text) for image, text in zip(PICTURES, TEXTS, strict=True)]
    *scores, nothing = reward([*samples, drew(None)])
    assert scores == pytest.approx(AUTHORS, rel=0, abs=5e-3)  # Pillow 12 resizes by 0.0024 otherwise than Pillow 13
    assert nothing is None


def test_only_the_first_35_tokens_are_read(checkpoint: Path) -> None:
    reward = ImageReward(str(checkpoint), str(checkpoint.parent))
    full, longer, other = reward(
        [drew(noise(0), "cat " * n + tail) for n, tail in ((33, ""), (40, "dogs"), (32, "dogs"))]
    )
    assert full == pytest.approx(longer, abs=1e-6)
    assert abs((full or 0) - (other or 0)) > 1e-3


def test_a_checkpoint_of_another_layout_raises(tmp_path: Path) -> None:
    without = {name: value for name, value in published().items() if "crossattention.output.dense" not in name}
    torch.save(without, tmp_path / "without.pt")
    with pytest.raises(RewardError, match=r"differs from ImageReward.*crossattention\.output\.dense"):
        ImageReward(str(tmp_path / "without.pt"), "unused")([drew(noise(0))])
    torch.save({"model": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(RewardError, match=r"no blip\.visual_encoder"):
        ImageReward(str(tmp_path / "other.pt"), "unused")([drew(noise(0))])
