"""A language or vision-language model of transformers as a judge: its replies, and its probabilities of words.

Prompts are encoded separately and only prompts of equal shape are batched, so nothing is padded and the batch size
changes scores only by rounding.

Axes: B prompts, P their tokens, A tokens of an answer, V vocabulary.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from mmgrpo.errors import RewardError
from mmgrpo.maths.seeds import derive_seed

from ..models.checkpoints import Dtype, batches, freeze, load_once, require_positive, resolve_device, resolve_dtype
from .judge_protocol import ReplyChoice, ReplyParams
from .questions import Question

_causal: set[int] = set()  # ids of loaded models (alive as long as the process) that passed the check of causality


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSource:
    """Settings of a local judge model.

    Attributes:
        model: path or hub id of a model with a chat template: image-text-to-text, or a causal language model.
        system: system prompt; None for that of the template.
        processor: arguments of its processor, for example ``{"max_pixels": 401408}``.
        template: further variables of its chat template, for example ``{"enable_thinking": False}``.
        device: None for the process's GPU, or the CPU.
        dtype: data type of the model.
        batch_size: number of questions per batch.
    """

    model: str
    system: str | None = None
    processor: Mapping[str, Any] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    dtype: Dtype = "float32"
    batch_size: int = 8
    is_remote: ClassVar[bool] = False

    def __post_init__(self) -> None:
        resolve_dtype("judge", self.dtype)
        require_positive("judge.batch_size", self.batch_size)

    def load(self) -> LocalJudge:
        """Load the model, once per process. Raises RewardError if it cannot be loaded."""
        device, dtype = resolve_device(self.device), resolve_dtype("judge", self.dtype)
        model, processor = load_once(
            _judge, self.model, json.dumps(dict(self.processor), sort_keys=True), device, dtype
        )
        return LocalJudge(model, processor, self)

    def replies(self, questions: Sequence[Question], reply_params: ReplyParams) -> list[list[str]]:
        """Replies to each question, without special tokens."""
        judge = self.load()
        if reply_params.temperature == 0:
            return [[reply] for reply in judge.replies(questions, reply_params.max_new_tokens)]
        return [judge.sample_replies(question, reply_params) for question in questions]

    def choice_probs(self, questions: Sequence[Question], choices: Sequence[ReplyChoice]) -> list[list[float] | None]:
        """Per question, the probability that the reply begins with each choice. Raises RewardError if two choices
        share their first token.
        """
        judge = self.load()
        token_ids = choice_ids(judge.tokenizer, choices)
        prob_BV = judge.next_logprobs(questions).exp()
        return torch.stack([prob_BV[:, ids].sum(-1) for ids in token_ids], dim=1).tolist()


@final
class LocalJudge:
    """The loaded model."""

    def __init__(self, model: Any, processor: Any, source: JudgeSource) -> None:
        self._model = model
        self._processor = processor
        self._source = source
        self.tokenizer = getattr(processor, "tokenizer", processor)

    @torch.no_grad()
    def replies(self, questions: Sequence[Question], max_new_tokens: int) -> list[str]:
        """Greedy replies to each question."""
        replies = [""] * len(questions)
        for rows, inputs in self._batches(questions):
            written = self._model.generate(
                **inputs, do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=self._pad()
            )
            texts = self.tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            for row, text in zip(rows, texts, strict=True):
                replies[row] = text
        return replies

    @torch.no_grad()
    def sample_replies(self, question: Question, reply_params: ReplyParams) -> list[str]:
        """Replies sampled for one question, with a seed derived from its text."""
        ((_, inputs),) = self._batches([question])
        with torch.random.fork_rng():
            torch.manual_seed(derive_seed(zlib.crc32(question.text.encode())))
            written = self._model.generate(
                **inputs, do_sample=True, temperature=reply_params.temperature, top_k=0, top_p=1.0,
                num_return_sequences=reply_params.draws, max_new_tokens=reply_params.max_new_tokens,
                pad_token_id=self._pad(),
            )  # fmt: skip
        return self.tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    @torch.no_grad()
    def next_logprobs(self, questions: Sequence[Question]) -> Tensor:
        """Log-probabilities of the first token of each reply. Shapes: (B, V) float32."""
        rows_logprobs: list[Tensor | None] = [None] * len(questions)
        for rows, inputs in self._batches(questions):
            logits_BV = self._model(**inputs, logits_to_keep=1).logits[:, -1].float()
            for row, logprob_V in zip(rows, logits_BV.log_softmax(-1).cpu(), strict=True):
                rows_logprobs[row] = logprob_V
        return torch.stack([logprob_V for logprob_V in rows_logprobs if logprob_V is not None])

    @torch.no_grad()
    def answer_logprobs(self, questions: Sequence[Question], answers: Sequence[str]) -> list[float | None]:
        """Mean log-probability per token of each answer as the reply, in nats; None for an answer of no tokens."""
        ids = [self.tokenizer(answer, add_special_tokens=False)["input_ids"] for answer in answers]
        answered = [i for i, tokens in enumerate(ids) if tokens]
        logprobs: list[float | None] = [None] * len(questions)
        for rows, inputs in self._batches([questions[i] for i in answered]):
            chosen = [answered[row] for row in rows]
            for i, value in zip(chosen, self._answered(inputs, [ids[i] for i in chosen]), strict=True):
                logprobs[i] = value
        return logprobs

    def _answered(self, inputs: dict[str, Tensor], answers: Sequence[list[int]]) -> list[float]:
        """One forward pass over prompt and answer; shorter answers are padded on the right, which a causal model
        does not attend to.
        """
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
        """Check once per model that the distribution of the first token does not depend on the following answer."""
        if id(self._model) in _causal:
            return
        alone_BV = self._model(**inputs, logits_to_keep=1).logits[:, -1].float().log_softmax(-1)
        if not torch.allclose(alone_BV, logprob_BV, atol=0.5 if self._model.dtype != torch.float32 else 1e-2):
            raise RewardError(
                f"{type(self._model).__name__} attends bidirectionally to its prompt, as PaliGemma does, so it "
                f"would see the answer that it scores; use a causal vision-language model"
            )
        _causal.add(id(self._model))

    def _batches(self, questions: Sequence[Question]) -> list[tuple[Sequence[int], dict[str, Tensor]]]:
        """Batches of questions with equal tensor shapes, with their positions."""
        encoded = [self._encoded(question) for question in questions]
        kinds: dict[Any, list[int]] = {}
        for position, inputs in enumerate(encoded):
            kind = tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(inputs.items()))
            kinds.setdefault(kind, []).append(position)
        encoded_batches: list[tuple[Sequence[int], dict[str, Tensor]]] = []
        for positions in kinds.values():
            for rows in batches(positions, self._source.batch_size):
                joined = {name: torch.cat([encoded[row][name] for row in rows]) for name in encoded[rows[0]]}
                encoded_batches.append((rows, {name: self._placed(tensor) for name, tensor in joined.items()}))
        return encoded_batches

    def _encoded(self, question: Question) -> dict[str, Tensor]:
        text = marks_apart(self.tokenizer, question.text)
        parts: list[dict[str, str]] = [{"type": "image"} for _ in question.images]
        is_multimodal = self._processor is not self.tokenizer
        if question.images and not is_multimodal:
            raise RewardError(f"{self._source.model} takes no images; use a vision-language model")
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [*parts, {"type": "text", "text": text}] if is_multimodal else text}
        ]
        if (system := self._source.system) is not None:
            messages.insert(
                0, {"role": "system", "content": [{"type": "text", "text": system}] if is_multimodal else system}
            )
        chat = self._processor.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self._source.template
        )
        images = {"images": [list(question.images)]} if question.images else {}
        encoded = self._processor(text=[chat], **images, return_tensors="pt", add_special_tokens=False)
        return {name: torch.as_tensor(value) for name, value in encoded.items() if name != "labels"}

    def _placed(self, tensor: Tensor) -> Tensor:
        dtype = self._model.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self._model.device, dtype)

    def _pad(self) -> int:
        pad, end = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        return pad if pad is not None else end if end is not None else 0


def marks_apart(tokenizer: Any, text: str) -> str:
    """Insert a space into special tokens in a text, such as turn markers, so that they are not tokenized as such."""
    added = tokenizer.added_tokens_decoder.values()
    marks = {*tokenizer.all_special_tokens, *(str(token) for token in added if token.special)}
    for mark in sorted(marks, key=len, reverse=True):
        if len(mark) > 1:
            text = text.replace(mark, f"{mark[0]} {mark[1:]}")
    return text


def choice_ids(tokenizer: Any, choices: Sequence[ReplyChoice]) -> list[list[int]]:
    """Per choice, the first tokens of replies that begin with it, with or without a leading space.

    A number must be a single token, so that 1 is not a prefix of 10; for a word its first token counts, in all cases,
    except tokens that also begin another choice.

    Raises: RewardError if a choice has no distinct token.
    """
    first_ids = [_begins(tokenizer, choice) for choice in choices]
    unique_ids = [ids - set().union(*first_ids[:i], *first_ids[i + 1 :]) for i, ids in enumerate(first_ids)]
    for choice, ids in zip(choices, unique_ids, strict=True):
        if not ids:
            how = "with several tokens" if choice.single_token else "with the first token of another answer"
            raise RewardError(
                f"the judge's tokenizer writes {choice.text} {how}; use a scale of single digits, such as low: 1, "
                "high: 5, or letters, or mode: parse"
            )
    return [sorted(ids) for ids in unique_ids]


def _begins(tokenizer: Any, choice: ReplyChoice) -> set[int]:
    written = [_ids(tokenizer, form) for word in choice.forms for form in (word, f" {word}")]
    return {ids[0] for ids in written if len(ids) == 1 or (ids and not choice.single_token)}


def _extended(name: str, tensor: Tensor, ids_BP: Tensor, answer_BA: Tensor) -> Tensor:
    """Append the answer to a tensor of the prompt that has an entry per token: text tokens, attended to."""
    if tensor.shape != ids_BP.shape:
        return tensor
    appended = {"input_ids": answer_BA, "attention_mask": torch.ones_like(answer_BA)}
    return torch.cat([tensor, appended.get(name, torch.zeros_like(answer_BA)).to(tensor.dtype)], dim=1)


def _ids(tokenizer: Any, form: str) -> list[int]:
    """The tokens of a text, without a leading space-only token, which some tokenizers put before a word."""
    ids = tokenizer(form, add_special_tokens=False)["input_ids"]
    return ids[1:] if len(ids) > 1 and not tokenizer.decode(ids[:1]).strip() else ids


def _judge(model: str, processor: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    is_multimodal = type(AutoConfig.from_pretrained(model)) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    kind, reader = (
        (AutoModelForImageTextToText, AutoProcessor) if is_multimodal else (AutoModelForCausalLM, AutoTokenizer)
    )
    loaded = kind.from_pretrained(model, dtype=dtype)
    return freeze(loaded, device), reader.from_pretrained(model, **json.loads(processor))
