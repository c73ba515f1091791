"""Checkpoints of VideoAlign's reward model: Qwen2-VL with a linear head at special tokens.

A checkpoint is a folder with ``model_config.json`` and ``checkpoint-<step>/``; the latest step is used. It has
``model.pth``, the complete model with separate LoRA weights, or ``adapter_model.safetensors`` and
``non_lora_state_dict.pth``, which override the base model. LoRA weights are merged into their layers.

Axes: B videos, L tokens, D width, K reward tokens, N outputs of the head.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.system.remote_files import downloaded, is_url

from ..models.checkpoints import freeze, load_state_dict

DIMENSIONS = ("VQ", "MQ", "TA")
REWARD_TOKENS = tuple(f"<|{name}_reward|>" for name in DIMENSIONS)
FIELD = "{text_prompt}"
EMBEDDING = "language_model.embed_tokens.weight"

TEMPLATES = {"detailed_special": "DETAILED_PROMPT_WITH_SPECIAL_TOKEN", "detailed": "DETAILED_PROMPT"}
"""Name of the template of each type in the authors' ``prompt_template.py``."""

NAMES = (
    (r"^(base_model\.model\.)", ""),
    (r"\.(base_layer|modules_to_save\.default)\.", "."),
    (r"\.lora_([AB])\.(default\.)?weight$", r".lora_\1"),
    (r"^model\.(?=(language_model|visual)\.)", ""),
    (r"^model\.", "language_model."),
)
"""Renames tensors from the conventions of peft and transformers versions to those of the bare model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Training settings of a checkpoint, from its ``model_config.json``.

    Attributes:
        base: path or hub id of the base Qwen2-VL.
        special: whether the head is applied at the reward tokens, else at the last token.
        fps: input frames per second; no effect if ``num_frames`` is set.
        num_frames: number of input frames.
        max_pixels: maximum pixels of a frame.
        template: type of its prompt template.
        lora_scale: factor of the LoRA weights.
        mean: mean per dimension over the authors' data; None if missing.
        std: standard deviation per dimension; None if missing.
    """

    base: str
    special: bool
    fps: float
    num_frames: int | None
    max_pixels: int
    template: str
    lora_scale: float
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    @classmethod
    def read(cls, folder: Path) -> Recipe:
        """Read the settings from a checkpoint's folder. Raises RewardError for settings that the published code does
        not support.
        """
        config = json.loads((folder / "model_config.json").read_text())
        data, model, lora = (config[name] for name in ("data_config", "model_config", "peft_lora_config"))
        special = bool(model.get("use_special_tokens"))
        if not special and (model.get("reward_token"), model.get("output_dim")) != ("last", len(DIMENSIONS)):
            raise RewardError(
                f"{folder} has its reward at {model.get('reward_token')!r} tokens with {model.get('output_dim')} "
                f"outputs; supported are special tokens, and the last token with {len(DIMENSIONS)}"
            )
        if data.get("sample_type", "uniform") != "uniform":
            raise RewardError(f"{folder} samples frames by {data['sample_type']!r}; only uniform is supported")
        rank = int(lora.get("lora_r") or 1)
        norms = config.get("inference_config")
        return cls(
            base=model["model_name_or_path"],
            special=special,
            fps=float(data.get("fps") or 2.0),
            num_frames=None if data.get("num_frames") is None else int(data["num_frames"]),
            max_pixels=int(data["max_frame_pixels"]),
            template=data.get("prompt_template_type", "none"),
            lora_scale=float(lora.get("lora_alpha") or 0) / (rank**0.5 if lora.get("use_rslora") else rank),
            mean=None if norms is None else tuple(float(norms[f"{name}_mean"]) for name in DIMENSIONS),
            std=None if norms is None else tuple(float(norms[f"{name}_std"]) for name in DIMENSIONS),
        )


@final
class VideoAlignModel:
    """The loaded model."""

    def __init__(self, backbone: Any, head: nn.Linear, processor: Any, recipe: Recipe) -> None:
        self._backbone = backbone
        self._head = head
        self._processor = processor
        self.recipe = recipe
        self.factor = int(processor.video_processor.patch_size) * int(processor.video_processor.merge_size)

    @torch.no_grad()
    def scores(self, videos: Sequence[Tensor], questions: Sequence[str]) -> Tensor:
        """Raw scores of videos (F, C, H, W), as resized bytes. Shapes: (B, dimensions).

        Position ids are sequential: the published code bypasses Qwen2-VL's positions along time, height and width, also
        in training.
        """
        inputs = self._processor(
            text=[self._chat(question) for question in questions],
            videos=list(videos),
            padding=True,
            padding_side="right",
            return_tensors="pt",
            do_sample_frames=False,
            do_resize=False,
        )
        device, dtype = self._backbone.device, self._backbone.dtype
        ids_BL = inputs["input_ids"].to(device)
        B, L = ids_BL.shape
        mask_BL = inputs["attention_mask"].to(device)
        hidden_BLD = self._backbone(
            input_ids=ids_BL,
            attention_mask=mask_BL,
            position_ids=torch.arange(L, device=device).expand(3, B, L),
            pixel_values_videos=inputs["pixel_values_videos"].to(device, dtype),
            video_grid_thw=inputs["video_grid_thw"].to(device),
            use_cache=False,
        ).last_hidden_state
        if not self.recipe.special:
            return self._head(hidden_BLD[torch.arange(B), mask_BL.sum(1) - 1].float()).cpu()
        tokens_K = torch.tensor(self._processor.tokenizer.convert_tokens_to_ids(list(REWARD_TOKENS)), device=device)
        score_BKN = self._head(hidden_BLD[torch.isin(ids_BL, tokens_K)].view(B, len(tokens_K), -1).float())
        return (score_BKN[..., 0] if score_BKN.shape[-1] == 1 else score_BKN.diagonal(dim1=1, dim2=2)).cpu()

    def _chat(self, question: str) -> str:
        content = [{"type": "video"}, {"type": "text", "text": question}]
        return self._processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )


def video_align_model(checkpoint: str, base: str | None, device: torch.device, dtype: torch.dtype) -> VideoAlignModel:
    """Load a checkpoint from a folder or hub id; ``base`` overrides the base model of its configuration."""
    from transformers import AutoConfig, AutoModel, AutoProcessor, Qwen2VLModel

    folder = checkpoint_folder(checkpoint)
    recipe = Recipe.read(folder)
    base = base or recipe.base
    processor, config = AutoProcessor.from_pretrained(base), AutoConfig.from_pretrained(base)
    if recipe.special:
        processor.tokenizer.add_tokens(list(REWARD_TOKENS), special_tokens=True)
    state_dict, is_full_model = _load_latest(folder)
    under: Mapping[str, Tensor] = {}
    if not is_full_model:
        model = AutoModel.from_pretrained(base, dtype="auto")
        model.resize_token_embeddings(len(processor.tokenizer))
        under = model.state_dict()
    tensors = merged(state_dict, recipe.lora_scale, under)
    head = tensors.pop("rm_head.weight", None)
    embedding = tensors.get(EMBEDDING)
    if head is None or embedding is None or (recipe.special and EMBEDDING not in map(plain_name, state_dict)):
        raise RewardError(f"{checkpoint} lacks its head or the embeddings of its tokens; it has {sorted(tensors)[:5]}")
    config.text_config.vocab_size = embedding.shape[0]
    loaded: Any = Qwen2VLModel.from_pretrained(
        None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
    )
    backbone, loading_info = loaded
    wrong = {kind: sorted(names)[:5] for kind, names in loading_info.items() if names}
    if wrong:
        raise RewardError(f"{checkpoint} does not have the layout of VideoAlign's checkpoints: {wrong}")
    linear = nn.Linear(head.shape[1], head.shape[0], bias=False)
    linear.load_state_dict({"weight": head})
    return VideoAlignModel(freeze(backbone, device), freeze(linear, device), processor, recipe)


def merged(state_dict: Mapping[str, Tensor], scale: float, under: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the bare model: the base, overridden by the checkpoint, plus LoRA's scale * B @ A."""
    named = {plain_name(name): tensor for name, tensor in state_dict.items() if ".original_module." not in name}
    lora = {name: named.pop(name) for name in list(named) if name.endswith((".lora_A", ".lora_B"))}
    tensors = dict(under) | {name: tensor for name, tensor in named.items() if not name.startswith("lm_head.")}
    for name in (name.removesuffix(".lora_A") for name in lora if name.endswith(".lora_A")):
        if f"{name}.weight" not in tensors or f"{name}.lora_B" not in lora:
            raise RewardError(f"the checkpoint has LoRA weights for {name} and no layer, or no second half, of it")
        layer = tensors[f"{name}.weight"]
        change = scale * (lora[f"{name}.lora_B"].float() @ lora[f"{name}.lora_A"].float())
        tensors[f"{name}.weight"] = (layer.float() + change).to(layer.dtype)
    return tensors


def plain_name(name: str) -> str:
    """The name of a tensor in the bare model."""
    for published, ours in NAMES:
        name = re.sub(published, ours, name)
    return name


def checkpoint_folder(checkpoint: str) -> Path:
    """The folder itself, or the downloaded folder of a hub id."""
    if Path(checkpoint).is_dir():
        return Path(checkpoint)
    from huggingface_hub import snapshot_download

    files = ["model.pth", "adapter_model.safetensors", "non_lora_state_dict.pth"]
    return Path(snapshot_download(checkpoint, allow_patterns=["*.json", *(f"checkpoint-*/{name}" for name in files)]))


def _load_latest(folder: Path) -> tuple[dict[str, Tensor], bool]:
    """The tensors of the latest checkpoint, and whether they are the complete model."""
    steps = {int(path.name.split("-")[1]): path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal()}
    if not steps:
        raise RewardError(
            f"{folder} has no folder checkpoint-<step>; it has {sorted(p.name for p in folder.iterdir())[:5]}"
        )
    latest = steps[max(steps)]
    if (latest / "model.pth").exists():
        return load_state_dict(str(latest / "model.pth")), True
    parts = [load_state_dict(str(latest / name)) for name in ("adapter_model.safetensors", "non_lora_state_dict.pth")]
    return parts[0] | parts[1], False


def prompt_template(named: str | None, kind: str, special: bool) -> str:
    """Read the prompt template with ``{text_prompt}`` of a checkpoint.

    Args:
        named: a text file, or the authors' ``prompt_template.py``, which is parsed and not executed; or its URL.
        kind: type of the template in the checkpoint's settings.
        special: whether it must contain each reward token once.

    Returns:
        The template; for the type none, only the prompt.

    Raises:
        ConfigError: it is missing or does not match the checkpoint.
    """
    if named is None and kind == "none":
        return FIELD
    if named is None:
        raise ConfigError(
            f"VideoAlign.template: the checkpoint was trained with the template {kind!r} of its authors; give the path "
            f"or the URL of prompt_template.py of github.com/KwaiVGI/VideoAlign, or of a text file with the same text"
        )
    path = downloaded(named) if is_url(named) else Path(named)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        constants = {
            target.id: node.value.value
            for node in ast.parse(text).body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        text = str(constants.get(TEMPLATES.get(kind, ""), ""))
    tokens = [token for token in REWARD_TOKENS if text.count(token) != int(special)]
    if text.count(FIELD) != 1 or tokens:
        raise ConfigError(
            f"VideoAlign.template: {named} holds no template {kind!r}: it needs {FIELD} once, and "
            f"{', '.join(REWARD_TOKENS)} {'once each' if special else 'nowhere'}"
        )
    return text
