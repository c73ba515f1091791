"""A vision-language model of transformers as a judge: what it writes about pictures, and how likely it finds words.

Prompts are processed alone and only those of one shape run together, so nothing is padded and the batch size changes no
score beyond rounding.

Axes: B prompts, P their tokens, A tokens of an answer, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from mmgrpo.errors import RewardError
from mmgrpo.rewards.judges.questions import Question
from mmgrpo.rewards.models.checkpoints import batches, chosen_device, chosen_dtype, frozen, once

_causal: set[int] = set()  # ids of loaded models, which live as long as the process, that were found to be causal


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSource:
    """Which model, and how it runs.

    Attributes:
        model: path or hub id of an image-text-to-text model with a chat template.
        processor: arguments of its processor, for example ``{"max_pixels": 401408}``.
        template: further variables of its chat template, for example ``{"enable_thinking": False}``.
        system: system turn; None for the template's own.
        device: None for the process's GPU, or the CPU.
        dtype: of the model.
        batch_size: questions at a time.
    """

    model: str
    processor: Mapping[str, Any]
    template: Mapping[str, Any]
    system: str | None
    device: str | None
    dtype: str
    batch_size: int

    def load(self) -> VisionLanguage:
        """The model, loaded at the first call in this process. Raises RewardError if it cannot be."""
        device, dtype = chosen_device(self.device), chosen_dtype("judge", self.dtype)
        model, processor = once(_judge, self.model, json.dumps(dict(self.processor), sort_keys=True), device, dtype)
        return VisionLanguage(model, processor, self)


@final
class VisionLanguage:
    """The loaded model."""

    def __init__(self, model: Any, processor: Any, source: JudgeSource) -> None:
        self._model = model
        self._processor = processor
        self._source = source
        self.tokenizer = processor.tokenizer

    @torch.no_grad()
    def replies(self, questions: Sequence[Question], max_new_tokens: int) -> list[str]:
        """What it writes to each question, greedily, without special tokens."""
        found = [""] * len(questions)
        for rows, inputs in self._batches(questions):
            written = self._model.generate(
                **inputs, do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=self._pad()
            )
            texts = self.tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            for row, text in zip(rows, texts, strict=True):
                found[row] = text
        return found

    @torch.no_grad()
    def next_logprobs(self, questions: Sequence[Question]) -> Tensor:
        """Log-probabilities of the first token of each reply. Shapes: (B, V) float32."""
        found: list[Tensor | None] = [None] * len(questions)
        for rows, inputs in self._batches(questions):
            logits_BV = self._model(**inputs, logits_to_keep=1).logits[:, -1].float()
            for row, logprob_V in zip(rows, logits_BV.log_softmax(-1).cpu(), strict=True):
                found[row] = logprob_V
        return torch.stack([logprob_V for logprob_V in found if logprob_V is not None])

    @torch.no_grad()
    def answer_logprobs(self, questions: Sequence[Question], answers: Sequence[str]) -> list[float | None]:
        """Mean log-probability per token of each answer as the reply, in nats; None for an answer of no tokens."""
        ids = [self.tokenizer(answer, add_special_tokens=False)["input_ids"] for answer in answers]
        known = [i for i, tokens in enumerate(ids) if tokens]
        found: list[float | None] = [None] * len(questions)
        for rows, inputs in self._batches([questions[i] for i in known]):
            chosen = [known[row] for row in rows]
            for i, value in zip(chosen, self._answered(inputs, [ids[i] for i in chosen]), strict=True):
                found[i] = value
        return found

    def _answered(self, inputs: dict[str, Tensor], answers: Sequence[list[int]]) -> list[float]:
        """One pass over prompt and answer; shorter answers are padded behind, where a causal model does not look."""
        length_B = [len(answer) for answer in answers]
        A, pad = max(length_B), self._pad()
        rows = [answer + [pad] * (A - len(answer)) for answer in answers]
        answer_BA = torch.tensor(rows, device=self._model.device)
        joined = {name: _extended(name, tensor, inputs["input_ids"], answer_BA) for name, tensor in inputs.items()}
        logprob_BAV = self._model(**joined, logits_to_keep=A + 1).logits[:, -A - 1 : -1].float().log_softmax(-1)
        self._require_causal(inputs, logprob_BAV[:, 0])
        logprob_BA = logprob_BAV.gather(-1, answer_BA[..., None])[..., 0]
        return [float(logprob_A[:length].mean()) for logprob_A, length in zip(logprob_BA, length_B, strict=True)]

    def _require_causal(self, inputs: dict[str, Tensor], logprob_BV: Tensor) -> None:
        """Once a model: what it expects first must not depend on the answer that follows."""
        if id(self._model) in _causal:
            return
        alone_BV = self._model(**inputs, logits_to_keep=1).logits[:, -1].float().log_softmax(-1)
        if not torch.allclose(alone_BV, logprob_BV, atol=0.5 if self._model.dtype != torch.float32 else 1e-2):
            raise RewardError(
                f"{type(self._model).__name__} reads its prompt both ways, as PaliGemma does, so that it "
                f"would see the answer it is asked about; take a causal vision-language model"
            )
        _causal.add(id(self._model))

    def _batches(self, questions: Sequence[Question]) -> list[tuple[Sequence[int], dict[str, Tensor]]]:
        """Questions whose tensors have the same shapes, put together; with their positions."""
        encoded = [self._encoded(question) for question in questions]
        kinds: dict[Any, list[int]] = {}
        for position, inputs in enumerate(encoded):
            kind = tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(inputs.items()))
            kinds.setdefault(kind, []).append(position)
        found: list[tuple[Sequence[int], dict[str, Tensor]]] = []
        for positions in kinds.values():
            for rows in batches(positions, self._source.batch_size):
                joined = {name: torch.cat([encoded[row][name] for row in rows]) for name in encoded[rows[0]]}
                found.append((rows, {name: self._placed(tensor) for name, tensor in joined.items()}))
        return found

    def _encoded(self, question: Question) -> dict[str, Tensor]:
        parts: list[dict[str, str]] = [{"type": "image"} for _ in question.pictures]
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [*parts, {"type": "text", "text": question.text}]}
        ]
        if self._source.system is not None:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": self._source.system}]})
        text = self._processor.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self._source.template
        )
        found = self._processor(
            text=[text], images=[list(question.pictures)], return_tensors="pt", add_special_tokens=False
        )
        return {name: torch.as_tensor(value) for name, value in found.items() if name != "labels"}

    def _placed(self, tensor: Tensor) -> Tensor:
        dtype = self._model.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self._model.device, dtype)

    def _pad(self) -> int:
        pad, end = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        return pad if pad is not None else end if end is not None else 0


def word_ids(tokenizer: Any, *words: str) -> set[int]:
    """The first tokens of a reply that begins with one of the words, after a space or without."""
    forms = [form for word in words for form in (word, f" {word}")]
    return {ids[0] for form in forms if (ids := _ids(tokenizer, form))}


def number_ids(tokenizer: Any, numbers: Sequence[int]) -> list[list[int]]:
    """Per number, the single tokens that write it.

    Raises: RewardError if the tokenizer writes one of them with several tokens.
    """
    found = []
    for number in numbers:
        ids = [_ids(tokenizer, form) for form in (str(number), f" {number}")]
        single = sorted({tokens[0] for tokens in ids if len(tokens) == 1})
        if not single:
            raise RewardError(
                f"the judge's tokenizer writes {number} with several tokens; ask for a scale of single digits, such as "
                f"low: 1, high: 5, or take mode: parse"
            )
        found.append(single)
    return found


def _extended(name: str, tensor: Tensor, ids_BP: Tensor, answer_BA: Tensor) -> Tensor:
    """A tensor of the prompt, with the answer behind it where it has an entry per token: plain text, to be read."""
    if tensor.shape != ids_BP.shape:
        return tensor
    behind = {"input_ids": answer_BA, "attention_mask": torch.ones_like(answer_BA)}
    return torch.cat([tensor, behind.get(name, torch.zeros_like(answer_BA)).to(tensor.dtype)], dim=1)


def _ids(tokenizer: Any, form: str) -> list[int]:
    """The tokens of a text, less a leading token that is nothing but a space, as some tokenizers put before a word."""
    ids = tokenizer(form, add_special_tokens=False)["input_ids"]
    return ids[1:] if len(ids) > 1 and not tokenizer.decode(ids[:1]).strip() else ids


def _judge(model: str, processor: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    made = AutoModelForImageTextToText.from_pretrained(model, dtype=dtype)
    return frozen(made, device), AutoProcessor.from_pretrained(model, **json.loads(processor))
