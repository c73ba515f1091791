"""The outline of a language model on the meta device, with the decoder calls of an update and a rollout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Cache,
    DynamicCache,
    PreTrainedModel,
)
from transformers.cache_utils import DynamicLayer
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from mmgrpo.outline import Outline, Pass

from ..adapter_formats import PeftFiles
from ..model_source import DTYPES, call_builder, require_model
from ..prefix import GROWTH, GrowingLayer, cache_argument, longer_cache, repeatable
from ..quantization import model_quantization, stored_bytes
from ..sampling import SamplingDistribution, sample_tokens, token_logprobs
from ..shapes import model_configs, to_meta
from ..text_models import checkpointing, language_linears, language_parameters, require_checkpointing
from ..weights import Weights
from .media_features import frozen_encoders
from .settings import LanguageSettings
from .slots import slot_length
from .transformer import slots_hold


def language_outline(settings: LanguageSettings, *, prompt_tokens: int, group_size: int, num_rows: int) -> Outline:
    """The outline of the model of the settings.

    Args:
        settings: settings of the policy.
        prompt_tokens: tokens per prompt, including those of its images.
        group_size: rows per prompt.
        num_rows: rows per step, the maximum size of a batch.

    Returns:
        The outline.

    Raises:
        ConfigError: the model's sizes are unknown.
    """
    model, source = _model(settings)
    quantization = settings.quantization_config
    stored = {} if quantization is None else stored_bytes(model, model_quantization(quantization, settings.dtype))
    with torch.device("meta"):
        Weights({"model": model}, settings.lora, language_linears(model), PeftFiles())
    if settings.lora is None and settings.freeze_vision:
        trained = language_parameters(model)
        for parameter in model.parameters():
            parameter.requires_grad_(parameter in trained)
    if settings.gradient_checkpointing:
        require_checkpointing(model)
    length = settings.max_new_tokens
    shared = settings.shares_prefix is not False
    rows = min(_slice_rows(settings, prompt_tokens, group_size, shared=shared), num_rows)
    written = min(settings.rollout_batch, num_rows)
    calls = _Calls(model, settings, prompt_tokens)
    waits = calls.in_slots and written < num_rows  # then prompts run while other rows are in slots
    return Outline(
        modules={"model": model},
        trained=("model",),
        sharded=(model.get_decoder(),),
        update=lambda: calls.update(rows, -(-rows // group_size) if shared else None),
        update_rows=rows,
        rollout=(
            Pass(
                prepare=lambda: calls.read(written, prompt_tokens + length - 1) if waits else None,
                call=lambda _: calls.prefill(-(-written // group_size)),
            ),
            Pass(prepare=lambda: calls.read(written, prompt_tokens + length - 1), call=calls.step),
            Pass(prepare=lambda: calls.read(written, prompt_tokens + length // 2), call=calls.step, times=length - 1),
        ),
        rollout_rows=written,
        assumed=(
            f"sizes of {source}",
            f"prompts of {prompt_tokens} tokens, answers of {length}, as long as they may be",
            "the weights of the vision and audio encoders are counted, and a full cache of their features if they are "
            "frozen; the memory of their forwards is not",
        ),
        update_size=lambda rows: prompt_tokens * (-(-rows // group_size) if shared else rows) + rows * length,
        stored_bytes=stored,
        offloaded=(model,) if settings.offload else (),
        cached_bytes=settings.memo_bytes if frozen_encoders(model) else 0,
    )


def _slice_rows(settings: LanguageSettings, prompt_tokens: int, group_size: int, *, shared: bool) -> int:
    """Rows that an update scores together: complete groups where they fit, a shared prompt's tokens counted once."""
    room, length = settings.update_tokens, settings.max_new_tokens
    if not shared:
        return max(room // (prompt_tokens + length), 1)
    num_groups = room // (prompt_tokens + group_size * length)
    return num_groups * group_size or max((room - prompt_tokens) // length, 1)


def _model(settings: LanguageSettings) -> tuple[PreTrainedModel, str]:
    source, dtype = require_model(settings.model), DTYPES[settings.dtype]
    if source.startswith("python:"):
        return to_meta(call_builder(source)[0].to(dtype)).eval(), source
    shapes = model_configs(source, settings.revision)
    config = AutoConfig.for_model(**shapes.config)
    kind = AutoModelForImageTextToText if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING else AutoModelForCausalLM
    chosen: dict[str, Any] = {} if settings.attention is None else {"attn_implementation": settings.attention}
    with torch.device("meta"):
        return kind.from_config(config, dtype=dtype, **chosen).eval(), shapes.source


class _Calls:
    """Calls of a model's decoder and head with tokens of no values."""

    def __init__(self, model: Any, settings: LanguageSettings, prompt_tokens: int) -> None:
        self._model, self._settings, self._prompt = model, settings, prompt_tokens
        dtype = DTYPES[settings.dtype]
        self._autocast = dtype if settings.lora is None and dtype != torch.float32 else None
        self.in_slots = not settings.compile and slots_hold(model, DynamicCache(config=model.config))

    def update(self, rows: int, prompts: int | None) -> Tensor:
        """Minus the mean log-probability of the answers of some rows that share so many prompts; None: none."""
        length = self._settings.max_new_tokens
        with checkpointing(self._model, self._settings.gradient_checkpointing):
            if prompts is not None:
                hidden_NTD = self._branched(prompts, rows, length)
            else:
                hidden_NTD = self._decoded(rows, self._prompt + length, None)[:, self._prompt - 1 : -1]
            vocabulary = self._model.get_output_embeddings().weight.shape[0]
            sampling = SamplingDistribution.of(self._settings, torch.zeros(0, dtype=torch.long))
            hidden_MD = hidden_NTD.reshape(-1, hidden_NTD.shape[-1])
            token_M = torch.zeros(len(hidden_MD), dtype=torch.long)
            chunk = self._settings.head_bytes // (4 * vocabulary)
            logprob_M, _ = token_logprobs(hidden_MD, token_M, self._logits, sampling, chunk=chunk)
        return -logprob_M.mean()

    def _branched(self, prompts: int, rows: int, length: int) -> Tensor:
        """The states that predict each token of rows that share prompts."""
        cache = repeatable(DynamicCache(config=self._model.config), grows=True)
        first_N1D = self._decoded(prompts, self._prompt, cache)[:, -1:]
        owner_N = torch.arange(rows) * prompts // rows
        if length == 1:
            return first_N1D[owner_N]
        later_NTD = self._decoded(rows, length - 1, repeatable(longer_cache(cache), owner_N, grows=False))
        return torch.cat([first_N1D[owner_N], later_NTD], dim=1)

    def prefill(self, prompts: int) -> Tensor:
        """Reads the prompts of a batch."""
        return self._decoded(prompts, self._prompt, DynamicCache(config=self._model.config))

    def read(self, rows: int, length: int) -> DynamicCache:
        """The cache of some rows that have read so many tokens, as it grows; slots store all of them in every layer."""
        text = self._model.config.get_text_config(decoder=True)
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        cache: Any = DynamicCache(config=self._model.config)
        if self.in_slots:
            cache.layers = [DynamicLayer() for _ in cache.layers]
        for number in range(text.num_hidden_layers):
            both = [torch.empty(rows, heads, length, width, dtype=DTYPES[self._settings.dtype]) for _ in "kv"]
            cache.update(*both, number)
            if type(cache.layers[number]) is DynamicLayer:
                growing = GrowingLayer(cache.layers[number])
                growing.reserve(slot_length(length) if self.in_slots else int((length + 1) * GROWTH))
                cache.layers[number] = growing
        return cache

    def step(self, cache: Any) -> Tensor:
        """Writes a token of each row after its cache."""
        rows = len(cache.layers[0].keys)
        sampling = SamplingDistribution.of(self._settings, torch.zeros(0, dtype=torch.long))
        logits_NV = sampling.tempered(self._logits(self._decoded(rows, 1, cache)[:, -1]))
        if sampling.truncates:
            logits_NV = logits_NV.where(sampling.support(logits_NV), -torch.inf)
        token_N1 = sample_tokens(logits_NV, torch.empty(rows))[:, None]
        return logits_NV.gather(-1, token_N1)[:, 0] - logits_NV.logsumexp(-1)

    def _decoded(self, rows: int, length: int, cache: Cache | None) -> Tensor:
        ids_NL = torch.zeros(rows, length, dtype=torch.long)
        with self._arithmetic():
            vectors = self._model.get_input_embeddings()(ids_NL)
            decoder = self._model.get_decoder()
            cache_kwargs = {} if cache is None else {cache_argument(decoder): cache}
            return decoder(inputs_embeds=vectors, use_cache=cache is not None, **cache_kwargs).last_hidden_state

    def _logits(self, hidden: Tensor) -> Tensor:
        with self._arithmetic():
            return self._model.get_output_embeddings()(hidden).float()

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast("cpu", dtype=self._autocast, enabled=self._autocast is not None)
