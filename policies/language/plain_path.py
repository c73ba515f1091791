"""The plain path: one call of the full model to score, and the model's own ``generate`` to decode.

It is slower than the others, because every row reads its prompt, and exact wherever a model's plain call agrees
with its ``generate``: encoder-decoders, any kind of cache, any kind of head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from ..token_buffer import TokenBuffer
from .audio_inputs import is_audio_tensor
from .encoding import MASK, EncodedPrompt
from .forward_paths import ForwardPath
from .text_trace import TextTrace

LAST = -1
FILLS = (0, 1, LAST)
"""Possible values of a prompt's per-token tensors at tokens of a completion: a number, or that of the last prompt
token.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainPath(ForwardPath):
    """Every row runs in full through the model itself.

    Attributes:
        model: the model.
        autocast: dtype of the arithmetic, if it differs from that of the weights.
        vocabulary: number of logits per position.
        max_tokens: maximum number of tokens per forward in updates.
        fill: one of ``FILLS``.
        batched: whether the rows of a prompt run in one batch; else one row at a time.
    """

    model: PreTrainedModel
    autocast: torch.dtype | None
    vocabulary: int
    max_tokens: int
    fill: int = 0
    batched: bool = True

    def __str__(self) -> str:
        return "the plain path" if self.batched else "the plain path, row by row"

    def decode_batches(self, prompts: Sequence[EncodedPrompt], owner_N: Sequence[int], size: int) -> list[list[int]]:
        """The rows of one prompt together, at most ``size``."""
        groups: dict[int, list[int]] = {}
        for row, owner in enumerate(owner_N):
            groups.setdefault(owner, []).append(row)
        return [rows[first : first + size] for rows in groups.values() for first in range(0, len(rows), size)]

    @torch.no_grad()
    def write(
        self, prompts: Sequence[EncodedPrompt], owner_N: Sequence[int], buffer: TokenBuffer, end_ids: Tensor
    ) -> None:
        """Runs the model's own ``generate``, with each token sampled by the buffer."""
        for rows in self._batches(owner_N, range(len(owner_N)), size=len(owner_N)):
            prompt = prompts[owner_N[rows[0]]]
            inputs = self._prompt_inputs(prompt, len(rows))
            writer = _Writer(buffer, torch.tensor(rows, device=self.model.device))
            config = self._generation(end_ids.tolist(), int(buffer.limit_N[rows].max()))
            with _generating_by(self.model, config), self._arithmetic():
                generate: Any = self.model.generate
                generate(**inputs, generation_config=config, logits_processor=LogitsProcessorList([writer]))

    def batches(self, trace: TextTrace, rows: Sequence[int]) -> list[list[int]]:
        """Rows of one prompt, shorter completions first."""
        batches = []
        order = sorted(rows, key=lambda r: (trace.prompt_of_B[r], len(trace.completions[r].token_T)))
        for batch in self._batches(trace.prompt_of_B, order, size=len(order)):
            prompt = trace.prompts[trace.prompt_of_B[batch[0]]]
            longest = prompt.length + max(len(trace.completions[row].token_T) for row in batch)
            size = max(1, self.max_tokens // longest)
            batches += [batch[start : start + size] for start in range(0, len(batch), size)]
        return batches

    def states(self, trace: TextTrace, rows: Sequence[int], tokens: Sequence[Tensor]) -> Tensor:
        """The logits themselves."""
        owners = [trace.prompt_of_B[row] for row in rows]
        longest = max(len(token_T) for token_T in tokens)
        parts = [
            self._called(trace.prompts[owners[batch[0]]], [tokens[n] for n in batch])
            for batch in self._batches(owners, range(len(rows)), size=len(rows))
        ]
        return torch.cat([pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts])

    def logits(self, states: Tensor) -> Tensor:
        """The states, which are logits already."""
        return states.float()

    def with_model(self, model: PreTrainedModel) -> PlainPath:
        """The same path with another model."""
        return replace(self, model=model)

    @property
    def has_encoder(self) -> bool:
        """Whether an encoder reads the prompt and a decoder writes the answer."""
        text = self.model.config.get_text_config(decoder=True)
        return bool(self.model.config.is_encoder_decoder or text.is_encoder_decoder)

    def _batches(self, owner_B: Sequence[int], rows: Sequence[int], *, size: int) -> list[list[int]]:
        """Consecutive rows of one prompt."""
        batches: list[list[int]] = []
        for row in rows:
            joins = batches and owner_B[batches[-1][-1]] == owner_B[row] and len(batches[-1]) < size
            if joins and self.batched:
                batches[-1].append(row)
            else:
                batches.append([row])
        return batches

    def _called(self, prompt: EncodedPrompt, tokens: Sequence[Tensor]) -> Tensor:
        """Logits of the completions of one prompt, (n, R, V)."""
        token_NR = pad_sequence(list(tokens), batch_first=True).to(self.model.device)
        N, R = token_NR.shape
        if self.has_encoder:
            start_N1 = torch.full((N, 1), self._start_id(), device=token_NR.device)
            inputs = self._prompt_inputs(prompt, N)
            inputs["decoder_input_ids"] = torch.cat([start_N1, token_NR[:, :-1]], dim=1)
            return self._logits(inputs)
        inputs = self._prompt_inputs(prompt, N, num_extra=R)
        inputs["input_ids"] = torch.cat([inputs["input_ids"][:, : prompt.length], token_NR], dim=1)
        lengths_N = torch.tensor([prompt.length + len(token_T) for token_T in tokens], device=token_NR.device)
        inputs[MASK] = (torch.arange(prompt.length + R, device=token_NR.device) < lengths_N[:, None]).long()
        if "logits_to_keep" in signature(self.model.forward).parameters:
            inputs["logits_to_keep"] = R + 1
        return self._logits(inputs)[:, -R - 1 : -1]  # from the right: images may be before the first token

    def _logits(self, inputs: dict[str, Any]) -> Tensor:
        with self._arithmetic():
            return self.model(**inputs, use_cache=False).logits

    def _prompt_inputs(self, prompt: EncodedPrompt, rows: int, *, num_extra: int = 0) -> dict[str, Any]:
        """The model inputs of a prompt, repeated per row, with ``num_extra`` further positions."""
        ids_1P = prompt.ids_P[None]
        inputs: dict[str, Any] = {"input_ids": ids_1P, MASK: torch.ones_like(ids_1P)}
        for name, tensor in (*prompt.per_token.items(), *prompt.media.items()):
            grows = tensor.shape[:2] == ids_1P.shape and not is_audio_tensor(name)
            inputs[name] = self._longer(prompt, name, tensor, num_extra) if grows else tensor
        device_inputs = {}
        for name, tensor in inputs.items():
            repeated = torch.cat([tensor] * rows).to(self.model.device)
            device_inputs[name] = repeated.to(self.model.dtype) if repeated.is_floating_point() else repeated
        return device_inputs

    def _longer(self, prompt: EncodedPrompt, name: str, tensor_1P: Tensor, count: int) -> Tensor:
        if name in prompt.per_token:
            return torch.cat([tensor_1P, prompt.values_at(name, count, self.fill)], dim=1)
        last_11 = tensor_1P[:, -1:]
        more = last_11 if self.fill == LAST else torch.full_like(last_11, self.fill)
        return torch.cat([tensor_1P, *([more] * count)], dim=1)

    def _start_id(self) -> int:
        named = (self.model.generation_config, self.model.config, self.model.config.get_text_config(decoder=True))
        for name in ("decoder_start_token_id", "bos_token_id"):
            for source in named:
                value = getattr(source, name, None)
                if value is not None:
                    return int(value[0] if isinstance(value, (list, tuple)) else value)
        raise ValueError(f"{type(self.model).__name__} names no decoder_start_token_id")

    def _generation(self, end_ids: list[int], length: int) -> GenerationConfig:
        """A greedy configuration: no beams, no penalties, no forced or forbidden tokens."""
        start = {"decoder_start_token_id": self._start_id()} if self.has_encoder else {}
        defaults = self.model.generation_config
        return GenerationConfig(
            max_new_tokens=length,
            do_sample=False,
            num_beams=1,
            eos_token_id=end_ids,
            pad_token_id=end_ids[0],
            bos_token_id=getattr(defaults, "bos_token_id", None),
            **start,
        )

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, dtype=self.autocast, enabled=self.autocast is not None)


class _Writer(LogitsProcessor):
    """Makes ``generate`` emit the tokens that a buffer samples."""

    def __init__(self, buffer: TokenBuffer, row_n: Tensor) -> None:
        self._buffer, self._row_n, self._t = buffer, row_n, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        token_n = self._buffer.write(self._t, self._row_n, scores.float())
        self._t += 1
        return torch.full_like(scores, -torch.inf).scatter(-1, token_n[:, None], 0.0)


@contextmanager
def _generating_by(model: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """A context in which neither the model nor its submodules have generation defaults besides ``config``."""
    writers: list[Any] = [m for m in model.modules() if getattr(m, "generation_config", None) is not None]
    previous = [(module, module.generation_config) for module in writers]
    for module in writers:
        module.generation_config = config
    try:
        yield
    finally:
        for module, default in previous:
            module.generation_config = default
