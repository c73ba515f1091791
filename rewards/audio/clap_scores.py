"""Reward from a CLAP model: alignment of audio and text.

Axes: N clips or texts, W windows of a clip, D width of the shared space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mmgrpo.data.audio_loading import resample_audio
from mmgrpo.types import Audio, Sample

from ..models.checkpoints import Dtype, freeze, in_batches, load_once, require_positive, resolve_device, resolve_dtype
from ..parsing.sample_images import prompt_text


@final
class ClapScore:
    """Reward: cosine similarity of the CLAP features of audio and text.

    The audio is converted to mono at the model's rate (48 kHz) and split into windows of its length (10 seconds), whose
    unit features are averaged; shorter audio is repeated, as in training. The text is the prompt, or ``text_column``,
    after ``prefix``. A sample without audio, or without a text, is not scored.

    Settings: ``model`` is a path or hub id of transformers; "laion/larger_clap_music" is better for music,
    "laion/larger_clap_general" for speech. ``device: null`` is the process's GPU or the CPU.
    Range: -1 to 1; good matches have 0.4 to 0.6.
    Source: Wu et al. 2023 (LAION-CLAP), arXiv:2211.06687; as a reward for text-to-audio Hung et al. 2024 (TangoFlux),
    arXiv:2412.21037. Deviation: all windows instead of a random one.
    Traps: it recognizes the type of sound, not its quality: noise similar to rain scores as rain. Order ("dog, then a
    bell"), counts and spoken words hardly matter. It truncates texts at 512 tokens.
    """

    deterministic = True

    def __init__(
        self,
        model: str = "laion/clap-htsat-unfused",
        prefix: str = "",
        text_column: str | None = None,
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 16,
    ) -> None:
        resolve_dtype("ClapScore", dtype)
        self._model = model
        self._prefix = prefix
        self.text_column = text_column
        self._device = device
        self._dtype = dtype
        self._batch_size = require_positive("ClapScore.batch_size", batch_size)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        texts = [prompt_text(sample.prompt, self.text_column) for sample in samples]
        pairs = [(s.audio, t) for s, t in zip(samples, texts, strict=True) if s.audio is not None and t is not None]
        cosines = iter(self._cosines([sound for sound, _ in pairs], [text for _, text in pairs]) if pairs else [])
        is_scored = [s.audio is not None and t is not None for s, t in zip(samples, texts, strict=True)]
        return [next(cosines) if has_score else None for has_score in is_scored]

    def _cosines(self, sounds: Sequence[Audio], texts: Sequence[str]) -> list[float]:
        clap = load_once(_clap, self._model, resolve_device(self._device), resolve_dtype("ClapScore", self._dtype))
        windows = [_windows(sound, clap[1].feature_extractor) for sound in sounds]
        flat_WD = in_batches(
            lambda batch: _sound_features(*clap, batch),
            self._batch_size,
            [w for sound_windows in windows for w in sound_windows],
        )
        parts = flat_WD.split([len(sound_windows) for sound_windows in windows])
        sound_ND = torch.stack([normalize(part, dim=-1).mean(0) for part in parts])
        prefixed = [self._prefix + text for text in texts]
        text_ND = in_batches(lambda batch: _text_features(*clap, batch), self._batch_size, prefixed)
        return torch.cosine_similarity(sound_ND, text_ND).tolist()


def _windows(sound: Audio, extractor: Any) -> list[Any]:
    """Split audio into windows of the model's length; a remainder below a tenth of it is dropped."""
    values_N = resample_audio(sound, extractor.sampling_rate, mono=True).values[0]
    size = int(extractor.nb_max_samples)
    pieces = values_N.split(size)
    return [piece.numpy() for n, piece in enumerate(pieces) if n == 0 or 10 * len(piece) >= size]


def _sound_features(model: Any, processor: Any, windows: Sequence[Any]) -> Tensor:
    rate = processor.feature_extractor.sampling_rate
    inputs = processor.feature_extractor(list(windows), sampling_rate=rate, return_tensors="pt")
    longer = inputs.pop("is_longer", None)
    features = inputs["input_features"].to(model.device, model.dtype)
    return _pooled(model.get_audio_features(input_features=features, is_longer=longer))


def _text_features(model: Any, processor: Any, texts: Sequence[str]) -> Tensor:
    longest = model.config.text_config.max_position_embeddings - 2
    tokens = processor.tokenizer(
        list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt"
    ).to(model.device)
    return _pooled(model.get_text_features(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]))


def _pooled(features: Any) -> Tensor:
    return features if isinstance(features, Tensor) else features.pooler_output


def _clap(name: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import ClapModel, ClapProcessor

    return freeze(ClapModel.from_pretrained(name, dtype=dtype), device), ClapProcessor.from_pretrained(name)
