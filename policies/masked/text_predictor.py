"""Masked language models of transformers, including those with custom code: answers after a prompt.

Axes: N rows, P prompt tokens, L positions of an answer, V tokens or codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Example, Prompt, Sample

from ..adapter_formats import PeftFiles
from ..chat_template import render, require_no_arguments, require_room
from ..vocabulary import TextDecoder, num_logits, unnamed_ids
from .codebook import NOISE, STEPS, Codebook
from .predictor import Condition, PredictorSpec
from .settings import MaskedSettings


class TextPredictor:
    """A model called as ``model(input_ids, attention_mask)`` on prompt and answer, with bidirectional attention.

    Rows share a batch with others of the same length, so there is no padding. The unconditional prompt of guidance is
    the negative one if there is one, else the prompt with every token masked, like in LLaDA.
    """

    def __init__(self, model: Any, tokenizer: Any, settings: MaskedSettings, decoder: nn.Module | None = None) -> None:
        """Wraps the model.

        Args:
            model: returns ``logits`` for every input token.
            tokenizer: its tokenizer.
            settings: prompt rendering and token constraints.
            decoder: of image codes.

        Raises:
            ConfigError: the mask token is unknown, or logits do not depend on later tokens.
        """
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.codes = codes = settings.codes
        if codes is not None and decoder is None:
            raise ConfigError("policy.codes needs a VQModel to decode images; set policy.codes.decoder")
        self.codebook = None if codes is None else Codebook(decoder, codes.height, codes.width)
        self.mask_id = _mask_id(model, tokenizer, settings)
        unnamed = unnamed_ids(tokenizer, num_logits(model)) if codes is None else []
        suppressed_ids = (
            {self.mask_id, *unnamed, *settings.suppress} - {tokenizer.eos_token_id} if codes is None else set()
        )
        self._text = TextDecoder(tokenizer, control_ids=[self.mask_id], turns=self._all_turns)
        length = settings.length if codes is None else codes.height * codes.width
        self.spec = PredictorSpec(
            modules={"model": model},
            targets=_linears(model),
            files=PeftFiles(),
            frozen=[] if decoder is None else [decoder],
            extra=tokenizer,
            length=length,
            suppressed_ids=torch.tensor(sorted(suppressed_ids), dtype=torch.long),
            num_steps=length if codes is None else STEPS,
            schedule="even" if codes is None else "cosine",
            order_noise=(0.0, 0.0) if codes is None else NOISE,
        )
        self._tail = self._ids("" if codes is None else codes.after)
        chat = getattr(tokenizer, "chat_template", None) is not None
        if settings.chat and not chat:
            raise ConfigError("policy.chat is true, but the tokenizer has no chat template: set policy.chat: false")
        self._uses_template = chat if settings.chat is None else settings.chat
        self._require_bidirectional()

    def condition(self, prompt: Prompt) -> Condition:
        """The rendered prompt; its length is its kind."""
        if prompt.images or prompt.videos or prompt.audios or prompt.prefix:
            raise DataError(
                f"the prompt {prompt.text!r:.60} has images, videos, audios or a prefix, which masked language models "
                "do not take; remove them"
            )
        ids_1P = self._ids(self._rendered(prompt))
        require_room(self.model, prompt, ids_1P.shape[1], length=self.spec.length + self._tail.shape[1])
        inputs = {"input_ids": ids_1P}
        if prompt.negative is not None:
            inputs["negative_ids"] = self._ids(self._rendered(replace(prompt, text=prompt.negative, messages=None)))
        return Condition(prompt=prompt, inputs=inputs, kind=tuple(ids.shape[1] for ids in inputs.values()))

    def mask_prompt(self, condition: Condition, share: float, generator: torch.Generator) -> Condition:
        """Masks each token independently."""
        ids_1P = condition.inputs["input_ids"]
        masked_1P = torch.rand(ids_1P.shape, generator=generator) < share
        return replace(condition, inputs={**condition.inputs, "input_ids": ids_1P.masked_fill(masked_1P, self.mask_id)})

    def logits(
        self,
        modules: Mapping[str, nn.Module],
        conditions: Sequence[Condition],
        token_NL: Tensor,
        masked_NL: Tensor,
        *,
        guidance_scale: float,
    ) -> Tensor:
        """The logits of the answer's positions; of image codes only, if the answer is an image."""
        offset = 0 if self.codes is None else self.codes.offset
        answer_NL = (token_NL + offset).masked_fill(masked_NL, self.mask_id)
        prompt_NP = torch.cat([condition.inputs["input_ids"] for condition in conditions])
        if guidance_scale == 1:
            return self._answer_logits(modules["model"], prompt_NP, answer_NL)
        if "negative_ids" in conditions[0].inputs:
            without_NP = torch.cat([condition.inputs["negative_ids"] for condition in conditions])
        else:
            without_NP = torch.full_like(prompt_NP, self.mask_id)
        without_NLV, with_NLV = (
            self._answer_logits(modules["model"], ids_NP, answer_NL) for ids_NP in (without_NP, prompt_NP)
        )
        return without_NLV + guidance_scale * (with_NLV - without_NLV)

    def _answer_logits(self, model: Any, prompt_NP: Tensor, answer_NL: Tensor) -> Tensor:
        tail_NA = self._tail.expand(len(answer_NL), -1)
        ids = torch.cat([prompt_NP, answer_NL, tail_NA], dim=1).to(self.model.device)
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        first = prompt_NP.shape[1] - self.settings.shifted
        logits_NLV = logits[:, first : first + answer_NL.shape[1]]
        if self.codes is None:
            return logits_NLV
        return logits_NLV[..., self.codes.offset : self.codes.offset + self.codes.number]

    def samples(self, samples: Sequence[Sample], token_NL: Tensor) -> list[Sample]:
        """The samples with texts up to their end, or with the images of the codes."""
        if self.codebook is not None:
            images = self.codebook.decode(token_NL)
            return [
                replace(sample, image=image, tokens=token_L.tolist())
                for sample, image, token_L in zip(samples, images, token_NL, strict=True)
            ]
        is_answer_NL = self.is_answer(token_NL)
        return [
            replace(
                sample,
                text=self._text(token_L[is_answer_L].tolist()),
                tokens=token_L.tolist(),
                finished=self.tokenizer.eos_token_id in (None, int(token_L[is_answer_L][-1])),
            )
            for sample, token_L, is_answer_L in zip(samples, token_NL, is_answer_NL, strict=True)
        ]

    def _all_turns(self) -> str:
        """One turn per role, rendered by the chat template; empty without a template."""
        turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
        with suppress(Exception):  # templates raise many kinds
            return self.tokenizer.apply_chat_template(turns, tokenize=False)
        return ""

    def is_answer(self, token_NL: Tensor) -> Tensor:
        """Tokens up to and including the first end token; all of an image."""
        if self.codes is not None or self.tokenizer.eos_token_id is None:
            return torch.ones_like(token_NL, dtype=torch.bool)
        is_end_NL = (token_NL == self.tokenizer.eos_token_id).long()
        return is_end_NL.cumsum(1) - is_end_NL == 0

    def target(self, example: Example) -> Tensor:
        """The text's tokens padded with end tokens, or the image's codes."""
        if self.codebook is not None:
            if example.image is None:
                raise DataError("examples and remasked samples of an image model need an image")
            return self.codebook.encode(example.image)
        if example.text is None:
            raise DataError("examples and remasked samples of a text model need a text")
        token_T, end = self._ids(example.text)[0], self.tokenizer.eos_token_id
        if len(token_T) > self.spec.length or (end is None and len(token_T) < self.spec.length):
            raise DataError(
                f"the answer {example.text!r:.60} has {len(token_T)} tokens and policy.length is {self.spec.length}; "
                "increase policy.length, or use a tokenizer with an end token"
            )
        return torch.cat([token_T, torch.full((self.spec.length - len(token_T),), -1 if end is None else end)])

    def _ids(self, text: str) -> Tensor:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return torch.tensor([ids], dtype=torch.long)

    def _rendered(self, prompt: Prompt) -> str:
        before = "" if self.settings.codes is None else self.settings.codes.before
        if not self._uses_template:
            if prompt.messages is not None and len(prompt.messages) > 1:
                raise DataError(f"the prompt {prompt.text!r:.60} has several turns, which need a chat template")
            require_no_arguments(prompt)
            return prompt.text + before
        turns = list(prompt.messages or [{"role": "user", "content": prompt.text}])
        if self.settings.system is not None and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": self.settings.system})
        return render(self.tokenizer, turns, prompt, add_generation_prompt=True) + before

    @torch.no_grad()
    def _require_bidirectional(self) -> None:
        """Raises ConfigError for a model whose logits do not depend on later tokens."""
        last_2 = torch.tensor([self.mask_id, (self.mask_id + 1) % len(self.tokenizer)])
        ids = torch.cat([torch.full((2, 3), self.mask_id), last_2[:, None]], dim=1).to(self.model.device)
        first, second = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, 0].float()
        if torch.equal(first, second):
            raise ConfigError(
                f"{type(self.model).__name__} is causal; masked policies need bidirectional attention: use a masked "
                "language model, or train this one with policy: {name: language}"
            )


def _linears(model: Any) -> list[str]:
    """Every linear layer except the output head."""
    head = model.get_output_embeddings()
    return [path for path, module in model.named_modules() if type(module) is nn.Linear and module is not head]


def _mask_id(model: Any, tokenizer: Any, settings: MaskedSettings) -> int:
    candidates = (settings.mask_token, tokenizer.mask_token_id, getattr(model.config, "mask_token_id", None))
    mask_id = next((candidate for candidate in candidates if candidate is not None), None)
    if mask_id is None:
        raise ConfigError("neither the tokenizer nor the model has a mask token: set policy.mask_token to its id")
    return int(mask_id)
