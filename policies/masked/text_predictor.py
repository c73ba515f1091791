"""Masked language models of transformers, and such as come with code of their own: answers behind a prompt.

Axes: N rows, P prompt tokens, L places of an answer, V tokens or codes.
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

from ..adapter_files import PeftFiles
from ..chat_template import render, require_no_arguments, require_room
from ..vocabulary import TextDecoder, num_logits, unnamed_ids
from .codebook import NOISE, STEPS, Codebook
from .predictor import Condition, PredictorSpec
from .settings import MaskedSettings


class TextPredictor:
    """A model called as ``model(input_ids, attention_mask)`` on prompt and answer, attending both ways.

    Rows run with others of the same length, so nothing is padded. The prompt without which guidance asks is the
    negative one where there is one, else the prompt with every token hidden, as LLaDA has it.
    """

    def __init__(self, model: Any, tokenizer: Any, settings: MaskedSettings, decoder: nn.Module | None = None) -> None:
        """Reads off the model what it does not say.

        Args:
            model: gives ``logits`` for every token that it is shown.
            tokenizer: its tokenizer.
            settings: how prompts are rendered, and which tokens an answer may have.
            decoder: of the codes of pictures.

        Raises:
            ConfigError: no mask token is known, or what comes later does not reach the logits of what comes before.
        """
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.codes = codes = settings.codes
        if codes is not None and decoder is None:
            raise ConfigError("pictures are made of codes by a VQModel: name one in policy.codes.decoder")
        self.codebook = None if codes is None else Codebook(decoder, codes.height, codes.width)
        self.mask_id = _mask_id(model, tokenizer, settings)
        unnamed = unnamed_ids(tokenizer, num_logits(model)) if codes is None else []
        never = {self.mask_id, *unnamed, *settings.suppress} - {tokenizer.eos_token_id} if codes is None else set()
        self._text = TextDecoder(tokenizer, control_ids=[self.mask_id], turns=self._all_turns)
        length = settings.length if codes is None else codes.height * codes.width
        self.facts = PredictorSpec(
            modules={"model": model},
            targets=_linears(model),
            files=PeftFiles(),
            frozen=[] if decoder is None else [decoder],
            beside=tokenizer,
            length=length,
            never=torch.tensor(sorted(never), dtype=torch.long),
            num_steps=length if codes is None else STEPS,
            schedule="even" if codes is None else "cosine",
            order_noise=(0.0, 0.0) if codes is None else NOISE,
        )
        self._tail = self._ids("" if codes is None else codes.after)
        chat = getattr(tokenizer, "chat_template", None) is not None
        if settings.chat and not chat:
            raise ConfigError("policy.chat is true, but the tokenizer has no chat template: set policy.chat: false")
        self._uses_template = chat if settings.chat is None else settings.chat
        self._require_both_ways()

    def condition(self, prompt: Prompt) -> Condition:
        """The rendered prompt; its length is its kind."""
        if prompt.images or prompt.videos or prompt.audios or prompt.prefix:
            raise DataError(
                f"the prompt {prompt.text!r:.60} has images, videos, audios or a beginning of its answer, which a "
                "masked language model is not shown: leave them out"
            )
        ids_1P = self._ids(self._rendered(prompt))
        require_room(self.model, prompt, ids_1P.shape[1], length=self.facts.length + self._tail.shape[1])
        inputs = {"input_ids": ids_1P}
        if prompt.negative is not None:
            inputs["negative_ids"] = self._ids(self._rendered(replace(prompt, text=prompt.negative, messages=None)))
        return Condition(prompt=prompt, inputs=inputs, kind=tuple(each.shape[1] for each in inputs.values()))

    def hidden(self, condition: Condition, share: float, generator: torch.Generator) -> Condition:
        """Each token by a number of its own."""
        ids_1P = condition.inputs["input_ids"]
        hidden_1P = torch.rand(ids_1P.shape, generator=generator) < share
        return replace(condition, inputs={**condition.inputs, "input_ids": ids_1P.masked_fill(hidden_1P, self.mask_id)})

    def logits(
        self,
        modules: Mapping[str, nn.Module],
        conditions: Sequence[Condition],
        token_NL: Tensor,
        hidden_NL: Tensor,
        *,
        guidance_scale: float,
    ) -> Tensor:
        """Of the answer's places alone; of codes, theirs alone."""
        offset = 0 if self.codes is None else self.codes.offset
        answer_NL = (token_NL + offset).masked_fill(hidden_NL, self.mask_id)
        prompt_NP = torch.cat([condition.inputs["input_ids"] for condition in conditions])
        if guidance_scale == 1:
            return self._of(modules["model"], prompt_NP, answer_NL)
        if "negative_ids" in conditions[0].inputs:
            without_NP = torch.cat([condition.inputs["negative_ids"] for condition in conditions])
        else:
            without_NP = torch.full_like(prompt_NP, self.mask_id)
        without_NLV, with_NLV = (self._of(modules["model"], each, answer_NL) for each in (without_NP, prompt_NP))
        return without_NLV + guidance_scale * (with_NLV - without_NLV)

    def _of(self, model: Any, prompt_NP: Tensor, answer_NL: Tensor) -> Tensor:
        tail_NA = self._tail.expand(len(answer_NL), -1)
        ids = torch.cat([prompt_NP, answer_NL, tail_NA], dim=1).to(self.model.device)
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        first = prompt_NP.shape[1] - self.settings.shifted
        logits_NLV = logits[:, first : first + answer_NL.shape[1]]
        if self.codes is None:
            return logits_NLV
        return logits_NLV[..., self.codes.offset : self.codes.offset + self.codes.number]

    def samples(self, bare: Sequence[Sample], token_NL: Tensor) -> list[Sample]:
        """Texts up to their end, or the pictures of the codes."""
        if self.codebook is not None:
            images = self.codebook.pictures(token_NL)
            return [
                replace(one, image=image, tokens=token_L.tolist())
                for one, image, token_L in zip(bare, images, token_NL, strict=True)
            ]
        kept_NL = self.until_end(token_NL)
        return [
            replace(
                one,
                text=self._text(token_L[kept_L].tolist()),
                tokens=token_L.tolist(),
                finished=self.tokenizer.eos_token_id in (None, int(token_L[kept_L][-1])),
            )
            for one, token_L, kept_L in zip(bare, token_NL, kept_NL, strict=True)
        ]

    def _all_turns(self) -> str:
        """A turn of each role as the chat template writes it; nothing without a template."""
        turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
        with suppress(Exception):  # of the template's own, jinja2's among them
            return self.tokenizer.apply_chat_template(turns, tokenize=False)
        return ""

    def until_end(self, token_NL: Tensor) -> Tensor:
        """The first end token is the last that counts; pictures have none."""
        if self.codes is not None or self.tokenizer.eos_token_id is None:
            return torch.ones_like(token_NL, dtype=torch.bool)
        is_end_NL = (token_NL == self.tokenizer.eos_token_id).long()
        return is_end_NL.cumsum(1) - is_end_NL == 0

    def target(self, example: Example) -> Tensor:
        """The text's tokens and end tokens behind it, or the picture's codes."""
        if self.codebook is not None:
            if example.image is None:
                raise DataError("what draws the codes of pictures is taught from, and reads, samples with an image")
            return self.codebook.of(example.image)
        if example.text is None:
            raise DataError("what fills in texts is taught from, and reads, samples with a text")
        token_T, end = self._ids(example.text)[0], self.tokenizer.eos_token_id
        if len(token_T) > self.facts.length or (end is None and len(token_T) < self.facts.length):
            raise DataError(
                f"the answer {example.text!r:.60} has {len(token_T)} tokens and policy.length is {self.facts.length}: "
                "raise the length, or give the tokenizer an end token"
            )
        return torch.cat([token_T, torch.full((self.facts.length - len(token_T),), -1 if end is None else end)])

    def _ids(self, text: str) -> Tensor:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return torch.tensor([ids], dtype=torch.long)

    def _rendered(self, prompt: Prompt) -> str:
        before = "" if self.settings.codes is None else self.settings.codes.before
        if not self._uses_template:
            if prompt.messages is not None and len(prompt.messages) > 1:
                raise DataError(f"the prompt {prompt.text!r:.60} has several turns, which take a chat template")
            require_no_arguments(prompt)
            return prompt.text + before
        turns = list(prompt.messages or [{"role": "user", "content": prompt.text}])
        if self.settings.system is not None and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": self.settings.system})
        return render(self.tokenizer, turns, prompt, add_generation_prompt=True) + before

    @torch.no_grad()
    def _require_both_ways(self) -> None:
        """Raises ConfigError for a model whose later tokens do not reach the logits of earlier places."""
        last_2 = torch.tensor([self.mask_id, (self.mask_id + 1) % len(self.tokenizer)])
        ids = torch.cat([torch.full((2, 3), self.mask_id), last_2[:, None]], dim=1).to(self.model.device)
        first, second = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, 0].float()
        if torch.equal(first, second):
            raise ConfigError(
                f"{type(self.model).__name__} reads from left to right, and what is hidden is predicted from both "
                "sides: give a masked language model, or train this one with policy: {name: language}"
            )


def _linears(model: Any) -> list[str]:
    """Every linear layer but the one that makes the logits."""
    head = model.get_output_embeddings()
    return [path for path, module in model.named_modules() if type(module) is nn.Linear and module is not head]


def _mask_id(model: Any, tokenizer: Any, settings: MaskedSettings) -> int:
    known = (settings.mask_token, tokenizer.mask_token_id, getattr(model.config, "mask_token_id", None))
    found = next((one for one in known if one is not None), None)
    if found is None:
        raise ConfigError("nothing says which token stands for what is hidden: set policy.mask_token to its id")
    return int(found)
