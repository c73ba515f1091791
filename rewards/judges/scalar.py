"""Rewards from reward models: outcome reward models and process reward models.

Axes: L tokens, K labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, final

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.types import Sample, Scope, Score

from ..models.checkpoints import Dtype, batches, freeze, load_once, require_positive, resolve_device, resolve_dtype
from ..parsing.explanations import parts
from ..parsing.extraction import Extract, extract_answer, require_choice, require_extract
from .local import marks_apart

Link = Literal["none", "sigmoid"]
Aggregate = Literal["min", "mean", "product", "last"]

AGGREGATES: Mapping[Aggregate, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": lambda probs: sum(probs) / len(probs),
    "product": math.prod,
    "last": lambda probs: probs[-1],
}


@final
class RewardModel:
    """Reward: score of the answer from a reward model, a sequence classifier with one or several labels.

    Its input is the prompt and, as the assistant's turn, the part of the text that ``extract`` selects, in its chat
    template; without a template, both as a pair of texts. ``output`` selects one of several outputs, or ``weights``
    sums them.

    Example: ``{name: reward_model, model: Skywork/Skywork-Reward-V2-Llama-3.1-8B}``.
    Settings: ``link: sigmoid`` maps scores to 0 to 1; ``output`` or ``weights``, one number per output; ``missing`` is
    the score of a text without the extracted part (None: not scored); ``max_tokens``: longer inputs are truncated at
    the beginning.
    Range: unbounded, or 0 to 1.
    Source: a model trained on comparisons as in InstructGPT, Ouyang et al. 2022, arXiv:2203.02155, eq. 1; transformers'
    AutoModelForSequenceClassification.
    Traps: scores have the scale of their model: choose weights accordingly, and use an advantage that divides by the
    standard deviation. It favors length and confidence; validate it against a judge or people. Scores of
    out-of-distribution answers are meaningless. Code of a checkpoint is not executed.
    """

    deterministic = True

    def __init__(
        self,
        model: str,
        extract: Extract = "none",
        link: Link = "none",
        output: int = 0,
        weights: Sequence[float] | None = None,
        missing: float | None = None,
        max_tokens: int = 8192,
        device: str | None = None,
        dtype: Dtype = "bfloat16",
        batch_size: int = 8,
    ) -> None:
        if weights is not None and (output != 0 or not weights):
            raise ConfigError("RewardModel takes weights, one for each output, or output, not both")
        self._model = model
        self._extract: Extract = require_extract("RewardModel.extract", extract)
        self._link: Link = require_choice("RewardModel.link", link, Link)
        self._output = output
        self._weights = None if weights is None else tuple(weights)
        self._missing = missing
        self._max_tokens = require_positive("RewardModel.max_tokens", max_tokens)
        self._device = device
        self._dtype = resolve_dtype("RewardModel", dtype)
        self._batch_size = require_positive("RewardModel.batch_size", batch_size)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        answers = [None if s.text is None else extract_answer(s.text, self._extract) for s in samples]
        values: list[float | Score | None] = [None if s.text is None else self._missing for s in samples]
        rows = [i for i, answer in enumerate(answers) if answer is not None]
        if rows:
            scored = self._scores([(samples[i], answers[i] or "") for i in rows])
            values = [scored[rows.index(i)] if i in rows else value for i, value in enumerate(values)]
        return values

    @torch.no_grad()
    def _scores(self, pairs: Sequence[tuple[Sample, str]]) -> list[Score]:
        model, tokenizer = load_once(_classifier, self._model, resolve_device(self._device), self._dtype)
        encoded = [_encode(tokenizer, sample, answer, self._max_tokens) for sample, answer in pairs]
        size = self._batch_size if model.config.pad_token_id is not None else 1
        scores: list[Score | None] = [None] * len(pairs)
        for rows in _equal_length_batches([len(tokens["input_ids"]) for tokens in encoded], size):
            inputs = {name: torch.tensor([encoded[i][name] for i in rows]).to(model.device) for name in encoded[0]}
            for row, logit_K in zip(rows, model(**inputs).logits.float().cpu(), strict=True):
                scores[row] = self._score(logit_K)
        return [score for score in scores if score is not None]

    def _score(self, logit_K: Tensor) -> Score:
        num_outputs = len(logit_K)
        if not -num_outputs <= self._output < num_outputs or (
            self._weights is not None and len(self._weights) != num_outputs
        ):
            raise RewardError(
                f"{self._model} has {num_outputs} outputs: set output below that, or weights with as many numbers"
            )
        values = (logit_K.sigmoid() if self._link == "sigmoid" else logit_K).tolist()
        if self._weights is None:
            return Score(values[self._output], parts(_named(values)) if num_outputs > 1 else {})
        return Score(sum(w * value for w, value in zip(self._weights, values, strict=True)), parts(_named(values)))


@final
class StepRewardModel:
    """Reward: step scores from a process reward model, aggregated by minimum or mean.

    The model is a token classifier; the text is split into steps at ``split``, each followed by ``separator``, and the
    probability of ``output`` is read at its last token. ``aggregate`` combines them; the score of each step is a scope,
    for the estimators of the ``advantage`` section.

    Example: ``{name: step_reward_model, model: MY_PROCESS_REWARD_MODEL, aggregate: min}``.
    Settings: ``aggregate`` is ``min``, ``mean``, ``product`` or ``last``; ``output`` is the index of the label for
    correct steps.
    Range: 0 to 1.
    Source: Lightman et al. 2023, arXiv:2305.20050, sec. 2.6 (the product), and Wang et al. 2024 (Math-Shepherd),
    arXiv:2312.08935 (the least); tokens as TRL 0.x's PRMTrainer puts them together.
    Traps: a mean increases with many easy steps, a sum with many steps; the minimum stays constant if one step is bad.
    Steps are split only by ``split``, so a policy may learn to write fewer of them. Thoughts are steps, too.
    """

    deterministic = True

    def __init__(
        self,
        model: str,
        split: str = "\n\n",
        separator: str = "\n",
        aggregate: Aggregate = "min",
        output: int = 1,
        max_tokens: int = 8192,
        device: str | None = None,
        dtype: Dtype = "bfloat16",
    ) -> None:
        if not split or not separator:
            raise ConfigError("StepRewardModel.split and separator must be texts of at least one character")
        self._model = model
        self._split = split
        self._separator = separator
        self._aggregate: Aggregate = require_choice("StepRewardModel.aggregate", aggregate, Aggregate)
        self._output = output
        self._max_tokens = require_positive("StepRewardModel.max_tokens", max_tokens)
        self._device = device
        self._dtype = resolve_dtype("StepRewardModel", dtype)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [None if sample.text is None else self._score(sample.prompt.text, sample.text) for sample in samples]

    @torch.no_grad()
    def _score(self, prompt: str, text: str) -> Score | None:
        steps = list(_steps(text, self._split))
        if not steps:
            return None
        model, tokenizer = load_once(_step_classifier, self._model, resolve_device(self._device), self._dtype)
        ids = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        ids += _ids(tokenizer, marks_apart(tokenizer, prompt))
        ends = []
        for start, end in steps:
            ids += _ids(tokenizer, marks_apart(tokenizer, text[start:end])) + _ids(tokenizer, self._separator)
            ends.append(len(ids) - 1)
        if len(ids) > self._max_tokens:
            return Score(math.nan, {"reason": f"{len(ids)} tokens, more than {self._max_tokens}"})
        logit_LK = model(input_ids=torch.tensor([ids]).to(model.device)).logits[0].float()
        if not -logit_LK.shape[1] <= self._output < logit_LK.shape[1]:
            raise RewardError(f"{self._model} has {logit_LK.shape[1]} outputs: set output below that")
        probs = logit_LK.softmax(-1)[ends, self._output].tolist()
        scopes = [Scope(start, end, prob) for (start, end), prob in zip(steps, probs, strict=True)]
        return Score(AGGREGATES[self._aggregate](probs), {"reason": f"{len(probs)} steps"}, scopes)


def _encode(tokenizer: Any, sample: Sample, answer: str, max_tokens: int) -> dict[str, list[int]]:
    """Encode prompt and answer in the model's format; truncated at the beginning."""
    prompt, answer_text = sample.prompt, marks_apart(tokenizer, answer)
    if tokenizer.chat_template:
        messages = prompt.messages or [{"role": "user", "content": prompt.text}]
        chat = tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": answer_text}], tokenize=False)
        encoded = tokenizer(chat, add_special_tokens=False)
    else:
        encoded = tokenizer(marks_apart(tokenizer, prompt.text), answer_text)
    return {name: list(ids)[-max_tokens:] for name, ids in encoded.items()}


def _equal_length_batches(lengths: Sequence[int], size: int) -> list[Sequence[int]]:
    """Batches of rows of equal length, so that nothing is padded."""
    kinds: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        kinds.setdefault(length, []).append(row)
    return [rows for members in kinds.values() for rows in batches(members, size)]


def _steps(text: str, split: str) -> list[tuple[int, int]]:
    """Start and end of the non-blank steps of a text."""
    spans, start = [], 0
    for piece in text.split(split):
        if piece.strip():
            spans.append((start, start + len(piece)))
        start += len(piece) + len(split)
    return spans


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _named(values: Sequence[float]) -> dict[str, float]:
    return {f"label {i}": value for i, value in enumerate(values)}


def _classifier(model: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    loaded = AutoModelForSequenceClassification.from_pretrained(model, dtype=dtype)
    return freeze(loaded, device), AutoTokenizer.from_pretrained(model)


def _step_classifier(model: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    loaded = AutoModelForTokenClassification.from_pretrained(model, dtype=dtype)
    return freeze(loaded, device), AutoTokenizer.from_pretrained(model)
