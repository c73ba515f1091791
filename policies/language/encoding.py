"""Prompt encoding: from a prompt to the input tensors of a model; the processor runs once per prompt.

Each prompt is processed alone, so its tensors are complete: visual features of any layout are never sliced out of a
batch by name. Prompts share a batch only if their tensors match.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from mmgrpo.environment import Turn
from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.samples import MEDIA, joined_media
from mmgrpo.tool_calls import REASONING, AssistantMessage, ToolResult
from mmgrpo.types import Prompt

from ..chat_template import render, require_no_arguments
from ..vocabulary import TextDecoder
from .audio_inputs import audio_arguments, is_audio_tensor
from .literal_text import MARK, LiteralText
from .media_check import kinds_dropped_by_processor, kinds_dropped_by_template, media_arrangement, media_probe
from .settings import LanguageSettings
from .tool_turns import (
    ANSWER,
    CALL_FORMS,
    FUNCTION,
    FUNCTION_SCHEMA,
    ToolCallForm,
    after_answer,
    media_prompt,
    reply_messages,
    template_message,
)
from .visual_inputs import visual_inputs, with_frame_rates

logger = logging.getLogger(__name__)

MASK = "attention_mask"
PLURALS = {"image": "images", "audio": "audio"}
UNUSED = ("input_ids", MASK, "labels")
"""Tensors of a processor that are no further input: the mask holds everywhere, and labels are of another loss."""
ONE_TURN_FIX = (
    "use a checkpoint whose template has several turns, policy.chat: false for text without a template, or "
    "rollout.max_turns: 1 for an environment that only rewards the first answer"
)
MAX_ANCHOR = 512
"""Tokens before a turn in which the response template looks for the beginning of the turn."""
MAX_OPENING = 16
"""Tokens before a turn with which the prompt may open a thinking block."""


@dataclass(frozen=True, slots=True, eq=False)
class MediaTurns:
    """The first tokens of a completion, up to the end of the environment's last turn with media.

    Attributes:
        token_R: token ids, with media placeholders expanded.
        per_token: tensors of shape (1, R) by name, as the prompt's; they hold at tokens of turns with media.
        is_media_turn_R: bool, True at tokens of turns with media.
        num_images: number of images of the prompt and of each turn with media.
    """

    token_R: Tensor
    per_token: Mapping[str, Tensor]
    is_media_turn_R: Tensor
    num_images: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EncodedReply:
    """A turn of the environment as tokens.

    Attributes:
        token_T: token ids, with media placeholders expanded.
        per_token: tensors of shape (1, T) by name, as the prompt's; empty for a turn without media.
    """

    token_T: Tensor
    per_token: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPrompt:
    """Input tensors of a prompt, or of the prompt of one row whose later turns have media.

    Attributes:
        prompt: the prompt, with the media of later turns; stored so that its ``id`` stays unique.
        ids_P: its token ids, with media placeholders expanded.
        per_token: further tensors of shape (1, P), one entry per token.
        media: all other tensors of the processor, for this prompt alone, those of later turns among them.
        is_beyond_switch: whether it is longer than ``position_switch``; such rows share no batch with shorter ones.
        media_turns: the tokens of its row up to the last medium of a later turn; None: no later turn has media.
    """

    prompt: Prompt
    ids_P: Tensor
    per_token: Mapping[str, Tensor]
    media: Mapping[str, Tensor]
    is_beyond_switch: bool = False
    media_turns: MediaTurns | None = None

    @property
    def length(self) -> int:
        """Number of tokens of the prompt, P."""
        return len(self.ids_P)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Key of prompts that may share a batch; without media their lengths may differ."""
        shapes = tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(self.media.items()))
        layout = (self.length, tuple(self.per_token), *shapes) if shapes else tuple(self.per_token)
        return (*layout, "beyond") if self.is_beyond_switch else layout

    def with_tokens(self, token_T: Tensor, fill: int) -> EncodedPrompt:
        """The prompt with tokens of its row appended, at which its per-token tensors are those of ``values_at``."""
        if len(token_T) == 0:
            return self
        longer = {
            name: torch.cat([tensor_1P, self.values_at(name, len(token_T), fill)], dim=1)
            for name, tensor_1P in self.per_token.items()
        }
        ids_P = torch.cat([self.ids_P, token_T.to(self.ids_P)])
        return replace(self, ids_P=ids_P, per_token=longer, media_turns=None)

    def values_at(self, name: str, count: int, fill: int) -> Tensor:
        """A per-token tensor at the first tokens after the prompt: that of the processor in turns with media, else
        ``fill`` (-1: the value of the last prompt token).

        Shapes: -> (1, count).
        """
        last_11 = self.per_token[name][:, -1:]
        value_1T = (last_11 if fill < 0 else torch.full_like(last_11, fill)).repeat(1, count)
        if self.media_turns is not None:
            is_media_R, value_1R = self.media_turns.is_media_turn_R[:count], self.media_turns.per_token[name]
            value_1T[:, : len(is_media_R)] = value_1R[:, :count].where(is_media_R, value_1T[:, : len(is_media_R)])
        return value_1T

    @property
    def up_to_media(self) -> EncodedPrompt:
        """The prompt with its row's tokens up to the last medium; itself if no later turn has media."""
        return self if self.media_turns is None else self.with_tokens(self.media_turns.token_R, fill=0)

    @property
    def num_bytes(self) -> int:
        """Memory of its tensors, in bytes."""
        return sum(
            tensor.numel() * tensor.element_size() for tensor in (*self.per_token.values(), *self.media.values())
        )


class PromptEncoder:
    """Encodes prompts with the model's own chat template and processor."""

    def __init__(
        self,
        processor: Any,
        settings: LanguageSettings,
        *,
        context: int | None,
        control_ids: Sequence[int] = (),
        media_ids: Sequence[int] = (),
        switch: int | None = None,
    ) -> None:
        """Inspects the processor.

        Args:
            processor: an ``AutoProcessor`` or ``AutoTokenizer`` of transformers.
            settings: settings of the policy.
            context: maximum number of positions of the model; None if unknown.
            control_ids: special tokens that are not part of a text: end tokens, and those of images, videos and audio.
            media_ids: those of images, videos and audio.
            switch: ``position_switch`` of the model.
        """
        self.processor = processor
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.settings = settings
        self._context = context
        self._switch = switch
        self._ends = [self.tokenizer.decode([token]) for token in control_ids if token not in media_ids]
        self.media_ids = tuple(media_ids)
        self._media_ids = torch.tensor(self.media_ids, dtype=torch.long)
        self._takes_media = self.tokenizer is not processor
        self._uses_template = self._has_template() if settings.chat is None else settings.chat
        if self._uses_template and not self._has_template():
            raise ConfigError(
                f"policy.chat is true, but {type(processor).__name__} has no chat template; use an instruct "
                "checkpoint, or set policy.chat: false to feed the prompt's text as it is"
            )
        if not self._uses_template and (settings.system is not None or settings.template):
            raise ConfigError(
                "policy.system and policy.template are for a chat template, and none is used; leave them out"
            )
        turns = self._all_turns if self._uses_template else None
        self.text = TextDecoder(self.tokenizer, control_ids=control_ids, turns=turns)
        self._literal = LiteralText(self.tokenizer, [*control_ids, *media_ids])
        self._dropped: dict[Any, Sequence[str]] = {}  # kinds of media that are dropped, by arrangement
        self._takes: dict[str, bool] = {}
        self._cache: OrderedDict[int, EncodedPrompt] = OrderedDict()
        self._bytes = 0

    def __call__(self, prompt: Prompt) -> EncodedPrompt:
        """The prompt's tensors, on the CPU.

        Raises: DataError for media that cannot be opened or have no position in the prompt, and for a prompt too
        long for a completion; nothing is ever truncated.
        """
        if id(prompt) in self._cache:
            self._cache.move_to_end(id(prompt))
            return self._cache[id(prompt)]
        encoded = self._encoded(prompt)
        self._cache[id(prompt)] = encoded
        self._bytes += encoded.num_bytes
        while self._bytes > self.settings.memo_bytes and len(self._cache) > 1:
            self._bytes -= self._cache.popitem(last=False)[1].num_bytes
        return encoded

    def encode_text(self, text: str) -> Tensor:
        """Token ids of an answer, or of its beginning, without an end token."""
        return torch.tensor(self.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=torch.long)

    def encode_reply(self, reply: Turn, *, prompt: Prompt, end_ids: Sequence[int]) -> EncodedReply:
        """A turn of the environment after a finished answer, up to the beginning of the next answer.

        Its tokens follow the chat template, except for the end token, which the answer has already. The processor
        replaces the placeholders of its media. Special tokens in its texts are encoded as their characters. Without a
        template, a text that no tool wrote has the special tokens of its format, and is tokenized as it is.

        Args:
            reply: the turn.
            prompt: prompt of the conversation, whose arguments for the template hold in every turn.
            end_ids: tokens that end an answer.

        Returns:
            The tokens.

        Raises: PolicyError if the template takes no such turn, DataError if the processor cannot process this one.
        """
        if self._uses_template or reply.role == "tool" or reply.results:
            reply = self._literal.mark(reply)
        text = self._reply_text(reply, prompt) if self._uses_template else reply.text
        if not reply.num_media:
            reply_T, per_token = self._literal.encode(text), {}
            if bool(torch.isin(reply_T, self._media_ids).any()):
                raise DataError(f"the turn {text!r:.60} has a placeholder of a medium, and no medium: remove it")
        elif MARK in text:
            raise DataError(
                f"the turn {text.replace(MARK, '')!r:.60} has media, and a special token of the model in its text, "
                "which the processor would take for a placeholder or the end of a turn: remove it from the text"
            )
        else:
            tensors = self._processor_tensors(media_prompt(reply), text, add_special_tokens=False)
            reply_T, per_token = tensors["input_ids"][0], _per_token(tensors)
        if self._uses_template and len(reply_T) and int(reply_T[0]) in end_ids:
            reply_T, per_token = reply_T[1:], {name: tensor[:, 1:] for name, tensor in per_token.items()}
        return EncodedReply(reply_T, per_token)

    def opening(self, turn: Turn) -> Turn:
        """The turn of ``reset`` with its special tokens marked as characters; unchanged without a chat template.

        Raises: DataError if the tokenizer cannot write one of them as text.
        """
        return self._literal.mark(turn) if self._uses_template else turn

    def require_turns(self) -> None:
        """Raises PolicyError if no turn of an environment can follow an answer in the chat template."""
        if self._uses_template:
            self._reply_text(Turn(text="x"), Prompt("x"))

    def _reply_text(self, reply: Turn, prompt: Prompt) -> str:
        """The text of the template; templates that number media count those of the conversation so far."""
        earlier = replace(prompt, text="x")  # its media, of which parts need the number alone
        question, answer, *replies = [{"role": "user", "content": earlier.parts}, *self._reply_messages(reply)]
        arguments = {name: value for name, value in prompt.chat_template_kwargs.items() if name != "tools"}
        try:
            rendered = self._rendered_turns([question, answer, *replies], add_generation_prompt=True, **arguments)
        except Exception as error:  # of the template's own, jinja2's among them
            raise PolicyError(
                f"the chat template takes no turn of {reply.role!r} after an answer ({type(error).__name__}: {error}); "
                f"{ONE_TURN_FIX}"
            ) from error
        tail = after_answer(rendered, self._ends if "tool_calls" in answer else ())
        if tail is None:
            raise PolicyError(
                f"the chat template does not write answers as they are, so no turn can follow one; {ONE_TURN_FIX}"
            )
        return tail.removeprefix(self._text_before_end)

    @cached_property
    def _text_before_end(self) -> str:
        """The text of the chat template between an answer and its end token, which the policy writes itself."""
        answered = self._probe([{"role": "user", "content": "x"}, {"role": "assistant", "content": ANSWER}])
        tail = after_answer(answered, ()) or ""
        return tail.removesuffix(after_answer(answered, self._ends) or tail)

    def _reply_messages(self, reply: Turn) -> list[dict[str, Any]]:
        return reply_messages(reply, self.call_form if reply.role == "tool" else None)

    def _rendered_turns(self, turns: Sequence[Mapping[str, Any]], **arguments: Any) -> str:
        arguments = {"add_generation_prompt": False, **self.settings.template, **arguments}
        return self.processor.apply_chat_template([self._turn(turn) for turn in turns], tokenize=False, **arguments)

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the chat template describes the functions in its argument ``tools``."""
        probe = [{"role": "user", "content": "x"}]
        return FUNCTION in self._probe(probe, tools=[{"type": "function", "function": FUNCTION_SCHEMA}])

    @cached_property
    def call_form(self) -> ToolCallForm | None:
        """The form in which the chat template writes the results of calls, after an answer with calls, as turns of a
        tool; None: it does not, which a warning says.
        """
        turn = Turn(role="tool", results=[ToolResult(FUNCTION, "probe_result")])
        for form in CALL_FORMS:
            tail = after_answer(
                self._probe([{"role": "user", "content": "x"}, *reply_messages(turn, form)]), self._ends
            )
            if tail is not None and "probe_result" in tail:
                return form
        logger.warning(
            "the chat template of %s writes no turn of a tool after an answer that one of %s ends: results of calls "
            "are turns of the user; if it ends calls with another token, as Gemma 4 with <|tool_response>, add that "
            "token to eos_token_id of the model's generation_config",
            type(self.processor).__name__,
            ", ".join(self._ends),
        )
        return None

    def _probe(self, messages: Sequence[Mapping[str, Any]], **arguments: Any) -> str:
        """The messages in the chat template; an empty text without a template, or if it rejects them."""
        if not self._uses_template:
            return ""
        try:
            return self._rendered_turns(messages, **arguments)
        except Exception:  # of the template's own, jinja2's among them
            return ""

    def message(self, encoded: EncodedPrompt, token_T: Tensor, start: int) -> AssistantMessage:
        """A turn of the policy, with its calls of tools: ``template_message``; without a chat template, its text alone.

        Args:
            encoded: prompt of the row.
            token_T: tokens of the row, up to the end of the turn.
            start: first token of the turn.

        Returns:
            The turn.
        """
        tokens = token_T[start:].tolist()
        text = self.text(tokens)
        if not self._uses_template:
            return AssistantMessage(text)
        before_L = torch.cat([encoded.ids_P[-MAX_ANCHOR:], token_T[:start]])[-MAX_ANCHOR:]
        tools = encoded.prompt.chat_template_kwargs.get("tools")
        message = template_message(self.tokenizer, text, tokens, before_L.tolist(), tools)
        end = next((end for end in self._ends if (message.content or "").endswith(end)), "")
        content = message.content.removesuffix(end) if message.content else message.content
        begins_in_reasoning = self.tokenizer.decode(before_L[-MAX_OPENING:]).rstrip().endswith(REASONING)
        return replace(message, content=content, begins_in_reasoning=begins_in_reasoning)

    def with_media_turn(
        self, encoded: EncodedPrompt, turn: Turn, token_T: Tensor, reply: EncodedReply
    ) -> EncodedPrompt:
        """The prompt of a row after a turn of the environment with media.

        The media tensors are those that the processor makes of all media of the conversation in one call, so that
        padding and tiles are as in a plain call. A processor that tiles one image and not several (LLaVA-OneVision)
        gets the images grouped by turn, so that each turn has the tiles that it has alone. The tokens are those of the
        row: sampled text is not tokenized again.

        Args:
            encoded: prompt of the row so far.
            turn: the turn.
            token_T: tokens of the row, those of the turn at its end.
            reply: the encoded turn.

        Returns:
            The prompt, for this row alone.

        Raises:
            DataError: the processor cannot take a medium, or drops it.
            PolicyError: it makes other placeholders of the conversation than of its turns.
        """
        prompt = self._with_turn(encoded.prompt, turn)
        earlier = (len(encoded.prompt.images),) if encoded.media_turns is None else encoded.media_turns.num_images
        num_images = (*earlier, len(turn.images))
        row_L = torch.cat([encoded.ids_P, token_T])
        tensors = self._tensors(prompt)
        if not torch.equal(self._placeholders(row_L), self._placeholders(tensors["input_ids"][0])):
            tensors = self._tensors_by_turn(prompt, num_images) or tensors
        ids_1L, per_token = tensors["input_ids"], _per_token(tensors)
        media = {name: tensor for name, tensor in tensors.items() if name not in (*per_token, *UNUSED)}
        aligned = [n for n, tensor in media.items() if tensor.shape[:2] == ids_1L.shape and not is_audio_tensor(n)]
        of_turns_N, of_all_N = self._placeholders(row_L), self._placeholders(ids_1L[0])
        if aligned or not torch.equal(of_turns_N, of_all_N):
            reason = f"it makes {', '.join(aligned)} of all tokens"
            if not aligned:
                reason = (
                    f"turn by turn they take {len(of_turns_N)} placeholders, together {len(of_all_N)}, as where one "
                    "image is tiled and several are not"
                )
            raise PolicyError(
                f"{type(self.processor).__name__} cannot take the media of a later turn after "
                f"{encoded.prompt.text!r:.60}: {reason}; show them in the prompt or in Environment.reset"
            )
        start = len(token_T) - len(reply.token_T)
        is_media_turn_R = torch.arange(len(token_T)) >= start
        if encoded.media_turns is not None:
            earlier_R = encoded.media_turns.is_media_turn_R
            is_media_turn_R[: len(earlier_R)] = earlier_R
        values = {
            name: torch.cat([encoded.values_at(name, start, fill=0), reply.per_token[name]], dim=1)
            for name in encoded.per_token
        }
        media_turns = MediaTurns(token_T, values, is_media_turn_R, num_images)
        return replace(encoded, prompt=prompt, media=media, media_turns=media_turns)

    def _tensors_by_turn(self, prompt: Prompt, num_images: Sequence[int]) -> dict[str, Tensor] | None:
        """The tensors of a conversation with images grouped by turn; None if the processor does not take them so."""
        text, groups = self._rendered(prompt), [number for number in num_images if number]
        try:
            return self._processor_tensors(prompt, text, add_special_tokens=not self._uses_template, groups=groups)
        except DataError:
            return None

    def _with_turn(self, prompt: Prompt, turn: Turn) -> Prompt:
        """A prompt with the media of a later turn after some answer: what the processor makes its tensors of."""
        media = joined_media([prompt, turn])
        if not self._uses_template:
            return replace(prompt, text=f"{prompt.text}{turn.text}", **media)
        messages = list(prompt.messages or [{"role": "user", "content": prompt.parts}])
        if messages[-1]["role"] != "assistant" or turn.results:
            messages.append({"role": "assistant", "content": "x"})
        answer, *replies = self._reply_messages(turn)
        messages = [*messages[:-1], {**answer, **messages[-1]}, *replies]
        return replace(prompt, messages=messages, **media)

    def _placeholders(self, ids_L: Tensor) -> Tensor:
        return ids_L[torch.isin(ids_L, self._media_ids)]

    def end_id(self, end_ids: Sequence[int]) -> int:
        """The end token that the chat template writes after an answer; without a template, the tokenizer's."""
        if self._uses_template:
            turns = [self._turn({"role": role, "content": "x"}) for role in ("user", "assistant")]
            tail = self.processor.apply_chat_template(turns, tokenize=False, **self.settings.template).rpartition("x")[
                2
            ]
            tail_ids = self.tokenizer(tail, add_special_tokens=False)["input_ids"]
            if end_tokens := [token for token in tail_ids if token in end_ids]:
                return end_tokens[0]
        eos_id = self.tokenizer.eos_token_id
        return eos_id if eos_id in end_ids else end_ids[0]

    def _all_turns(self) -> str:
        """One turn of each role in the chat template; a template may reject a system turn."""
        texts = []
        for roles in (("user", "assistant", "user"), ("system", "user", "assistant", "user")):
            turns = [self._turn({"role": role, "content": "x"}) for role in roles]
            with suppress(Exception):  # of the template's own, jinja2's among them
                texts.append(self.processor.apply_chat_template(turns, tokenize=False, **self.settings.template))
        return "".join(texts)

    def _has_template(self) -> bool:
        return bool(getattr(self.processor, "chat_template", None) or getattr(self.tokenizer, "chat_template", None))

    def _encoded(self, prompt: Prompt) -> EncodedPrompt:
        tensors = self._tensors(prompt)
        ids, per_token = tensors["input_ids"], _per_token(tensors)
        media = {name: tensor for name, tensor in tensors.items() if name not in (*per_token, *UNUSED)}
        beyond = self._switch is not None and ids.shape[1] > self._switch
        encoded = EncodedPrompt(prompt, ids[0], per_token, media, is_beyond_switch=beyond)
        self.require_room(encoded, self.settings.max_new_tokens)
        return encoded

    def require_room(self, encoded: EncodedPrompt, length: int) -> None:
        """Raises DataError if prompt and answer together exceed the model's context."""
        if self._context is not None and encoded.length + length > self._context:
            raise DataError(
                f"the prompt {encoded.prompt.text!r:.60} takes {encoded.length} tokens, which with max_new_tokens="
                f"{length} is more than the model's context of {self._context}; shorten it, use smaller images "
                "(policy.processor: {max_pixels: ...}) or lower policy.max_new_tokens"
            )
        if self._switch is not None and encoded.length <= self._switch < encoded.length + length:
            raise DataError(
                f"the prompt {encoded.prompt.text!r:.60} takes {encoded.length} tokens, and its row could pass "
                f"{self._switch}, from where the model's LongRoPE scales the positions of all its tokens, also of "
                "those that were sampled before: such a row has no exact log-probabilities. Lower "
                f"policy.max_new_tokens to {self._switch - encoded.length} or less, or give prompts of more than "
                f"{self._switch} tokens"
            )

    def _tensors(self, prompt: Prompt) -> dict[str, Tensor]:
        num_images, num_videos, num_audios = len(prompt.images), len(prompt.videos), len(prompt.audios)
        if (num_images or num_videos or num_audios) and not self._takes_media:
            inputs = "has images or videos" if num_images or num_videos else "has audio"
            raise DataError(
                f"the prompt {prompt.text!r:.60} {inputs}, and {type(self.processor).__name__} reads text only; "
                "use a checkpoint with image or audio input, or remove the media"
            )
        text = self._rendered(prompt)
        if MARK in text:
            return self._literal_tensors(prompt, text)
        tensors = self._processor_tensors(prompt, text, add_special_tokens=not self._uses_template, checks=True)
        for medium, media in (("image", prompt.images), ("audio", prompt.audios)):
            if len(media) and not self._uses_template:
                self._require_placeholders(prompt, tensors["input_ids"], medium)
        return tensors

    def _literal_tensors(self, prompt: Prompt, text: str) -> dict[str, Tensor]:
        """The tensors of a prompt without media, with the special tokens that an environment wrote as characters."""
        if any(len(getattr(prompt, name)) for name in MEDIA.values()):
            raise DataError(
                f"the prompt {prompt.text.replace(MARK, '')!r:.60} has media, and the text of Environment.reset or of "
                "its tools a special token of the model, which the processor would take for a placeholder or the end "
                "of a turn: remove it from the text"
            )
        ids_1L = self._literal.encode(text)[None]
        tensors = self._processor_tensors(prompt, text, add_special_tokens=False)
        for name, value_1K in _per_token(tensors).items():  # of text alone, the same for all tokens
            tensors[name] = value_1K[:, :1].expand(ids_1L.shape)
        return {**tensors, "input_ids": ids_1L, MASK: torch.ones_like(ids_1L)}

    def _processor_tensors(
        self,
        prompt: Prompt,
        text: str,
        *,
        add_special_tokens: bool,
        checks: bool = False,
        groups: Sequence[int] | None = None,
    ) -> dict[str, Tensor]:
        """The processor's tensors of a text with the media of a prompt; ``checks``: that no medium is dropped;
        ``groups``: numbers of images that it takes together, by default all.
        """
        num_images, num_videos, num_audios = len(prompt.images), len(prompt.videos), len(prompt.audios)
        visual = visual_inputs(prompt, self.processor, self.settings.video)
        arguments: dict[str, Any] = {"return_tensors": "pt", "add_special_tokens": add_special_tokens}
        arguments |= visual.arguments
        if num_images:
            images = iter(visual.images)
            arguments["images"] = [list(islice(images, number)) for number in groups or [num_images]]
        if num_videos:
            arguments["videos"] = [visual.videos]
            arguments |= {"video_metadata": [visual.metadata], "do_sample_frames": False}
        if num_audios:
            arguments |= audio_arguments(self.processor, prompt.audios)
        try:
            processed = self._processed(text, arguments)
        except Exception as error:  # of the processor's own, without a common base
            hint = "its messages must hold as many image, video and audio parts"
            if not self._uses_template:
                hint = "without a chat template the text itself must contain the placeholders of images and audio"
            raise DataError(
                f"{type(self.processor).__name__} cannot process the prompt {prompt.text!r:.60} with {num_images} "
                f"images and {num_videos} videos and {num_audios} audio files: {error}; {hint}"
            ) from error
        if checks:
            self._require_every_medium(prompt, text, arguments, processed)
        tensors = {name: torch.as_tensor(value) for name, value in processed.items() if value is not None}
        tensors = with_frame_rates(tensors, visual, self.processor)
        if "input_ids" not in tensors:
            raise DataError(
                f"{type(self.processor).__name__} makes no tokens of the prompt {prompt.text!r:.60}: it reads images "
                "only, and such models are not supported; use one with text input"
            )
        return tensors

    def _require_every_medium(
        self, prompt: Prompt, text: str, arguments: dict[str, Any], processed: Mapping[str, Any]
    ) -> None:
        """Raises DataError if a medium of the prompt does not reach the tensors; checked once per arrangement of
        media.
        """
        if not any(len(getattr(prompt, name)) for name in MEDIA.values()):
            return
        key = media_arrangement(prompt, self.processor)
        if key not in self._dropped:
            dropped: list[str] = []
            if self._uses_template:
                dropped = kinds_dropped_by_template(
                    self._messages(prompt), lambda messages: self._template(messages, prompt)
                )
            if not dropped:
                dropped = kinds_dropped_by_processor(
                    arguments, processed, lambda changed: self._processed(text, changed)
                )
            self._dropped[key] = dropped
        if self._dropped[key]:
            raise DataError(self._not_read(prompt, self._dropped[key]))

    def _not_read(self, prompt: Prompt, kinds: Sequence[str]) -> str:
        counted = " and ".join(
            f"{n} {kind}{'s' * (n > 1)}" for kind in kinds if (n := len(getattr(prompt, MEDIA[kind])))
        )
        name = type(self.processor).__name__
        takes = " and ".join(["text", *(MEDIA[kind] for kind in MEDIA if self.takes(kind))])
        return (
            f"the prompt {prompt.text!r:.60} has {counted}, and {name} or its chat template drops at least one of "
            f"them, so the model would not see it; it takes {takes}. Remove the {' and '.join(kinds)} from the row, or "
            "use a model that takes it"
        )

    def takes(self, kind: str) -> bool:
        """Whether the model sees media of a kind (``image``, ``video``, ``audio``): one small probe is encoded."""
        if kind not in self._takes:
            self._takes[kind] = False  # also while its own error is written
            mark = None if self._uses_template else getattr(self.processor, f"{kind}_token", None)
            for probe in (media_probe(kind), *([media_probe(kind, mark)] if isinstance(mark, str) else [])):
                with suppress(Exception):  # each processor raises another error for unsupported arguments
                    self._tensors(probe)
                    self._takes[kind] = True
        return self._takes[kind]

    def takes_kinds(self, turn: Turn) -> bool:
        """Whether the model sees media of all kinds that a turn has."""
        return all(self.takes(kind) for kind, name in MEDIA.items() if len(getattr(turn, name)))

    def _processed(self, text: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """The processor's output for one prompt; some processors take images only as a flat list."""
        try:
            return self.processor(text=[text], **arguments)
        except (ValueError, TypeError) as error:
            if "images" not in arguments:
                raise
            try:
                return self.processor(text=[text], **arguments | {"images": arguments["images"][0]})
            except (ValueError, IndexError, TypeError):
                raise error from None

    def _require_placeholders(self, prompt: Prompt, ids: Tensor, medium: str) -> None:
        """Without a chat template the processor inserts media, or they are at their mark in the text."""
        mark, shows = getattr(self.processor, f"{medium}_token_id", None), PLURALS[medium]
        if isinstance(mark, int) and not bool((ids == mark).any()):
            raise DataError(
                f"the prompt {prompt.text!r:.60} has {shows} and no placeholder for it; without a chat template the "
                f"text must contain the placeholders of {shows}: add {self.tokenizer.decode([mark])!r} to it"
            )

    def _rendered(self, prompt: Prompt) -> str:
        if not self._uses_template:
            if prompt.messages is not None and len(prompt.messages) > 1:
                raise DataError(
                    f"the prompt {prompt.text!r:.60} has {len(prompt.messages)} turns, which only a chat template can "
                    "put together; use a checkpoint with one, leave policy.chat unset, or give prompts of one turn"
                )
            require_no_arguments(prompt)
            return prompt.text
        return self._template(self._messages(prompt), prompt)

    def _messages(self, prompt: Prompt) -> list[dict[str, Any]]:
        messages = [self._turn(turn) for turn in prompt.messages or [{"role": "user", "content": prompt.parts}]]
        if self.settings.system is not None and messages[0]["role"] != "system":
            messages.insert(0, self._turn({"role": "system", "content": self.settings.system}))
        return messages

    def _template(self, messages: Sequence[Mapping[str, Any]], prompt: Prompt) -> str:
        goes_on = messages[-1]["role"] == "assistant"
        return render(
            self.processor,
            messages,
            prompt,
            add_generation_prompt=not goes_on,
            continue_final_message=goes_on,
            **self.settings.template,
        )

    def _turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        """A turn with its content in the form that the template expects: parts for processors, text for tokenizers."""
        content = turn["content"] or ""  # null with tool calls, as OpenAI writes it
        if self._takes_media and isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not self._takes_media and not isinstance(content, str):
            content = "".join(part["text"] for part in content if part.get("type") == "text")
        return {**turn, "content": content}


def _per_token(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with one entry per token that a model reads besides its token ids."""
    shape = tensors["input_ids"].shape
    return {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.shape == shape and name not in UNUSED and not is_audio_tensor(name)
    }


def position_switch(config: Any) -> int | None:
    """The sequence length above which a model scales its rotary embeddings differently, for all tokens of a row; or
    None.

    Args:
        config: of the text model; its ``rope_parameters`` may be per layer type.

    Returns:
        ``original_max_position_embeddings`` of LongRoPE (arXiv:2402.13753), as transformers' ``dynamic_rope_update``
        reads it.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    layers = [parameters, *(value for value in parameters.values() if isinstance(value, Mapping))]
    lengths = [rope["original_max_position_embeddings"] for rope in layers if rope.get("rope_type") == "longrope"]
    return min(lengths, default=None)


def prompt_batches(prompts: Sequence[EncodedPrompt], max_tokens: int) -> list[list[int]]:
    """Batches of prompt indices, in order; at most ``max_tokens`` tokens per batch, including padding."""
    batches: list[list[int]] = []
    open_batch: dict[Any, list[int]] = {}
    for position in sorted(range(len(prompts)), key=lambda k: prompts[k].length):
        kind = prompts[position].kind
        batch = open_batch.get(kind)
        if batch is None or (len(batch) + 1) * prompts[position].length > max_tokens:
            batch = open_batch[kind] = []
            batches.append(batch)
        batch.append(position)
    return batches
