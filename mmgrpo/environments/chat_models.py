"""Models that reply to a conversation: one at a server, or one that is loaded into the process."""

from __future__ import annotations

import json
import os
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

from mmgrpo.errors import ConfigError
from mmgrpo.system.hub import explain_load_error
from mmgrpo.system.json_requests import NoReplyError, RequestLimits, post_json
from mmgrpo.system.lazy import torch

Messages = Sequence[dict[str, str]]
"""Messages with ``role`` and ``content``, the last one of the user."""

_lock = threading.Lock()  # one model is loaded, or replies, at a time


class ChatModel(ABC):
    """A model that writes the next message of a conversation."""

    @abstractmethod
    def reply(self, messages: Messages) -> str:
        """The next message.

        Args:
            messages: the conversation so far.

        Returns:
            Its text.

        Raises:
            NoReplyError: there is none.
        """


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel(ChatModel):
    """A model at an OpenAI-compatible server.

    Attributes:
        url: base URL of the server.
        model: name of the model.
        max_new_tokens: maximum number of tokens of a reply.
        temperature: sampling temperature.
        limits: limits of a request.
        key_variable: environment variable with the API key; None sends none.
    """

    url: str
    model: str
    max_new_tokens: int
    temperature: float
    limits: RequestLimits
    key_variable: str | None

    def reply(self, messages: Messages) -> str:
        """The server's reply, as ``ChatModel.reply``."""
        url = f"{self.url.rstrip('/')}/chat/completions"
        request = {
            "model": self.model,
            "max_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "messages": list(messages),
        }
        body = post_json(url, request, self.limits, key_variable=self.key_variable)
        try:
            content = json.loads(body)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise NoReplyError(f"{url} replied with no chat completion: {body[:200]!r}") from error
        if not isinstance(content, str) or not content.strip():
            raise NoReplyError(f"{url} replied with an empty message")
        return content


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel(ChatModel):
    """A causal language model of transformers in this process, loaded once, with frozen weights.

    Conversations that wait for it are replied to one after another. A sampled reply depends only on its conversation.

    Attributes:
        model: path or hub id of a model whose tokenizer has a chat template.
        max_new_tokens: maximum number of tokens of a reply.
        temperature: sampling temperature; 0: the most likely tokens.
        device: device of the model; None: the GPU of this process, or the CPU.
        dtype: data type of its weights, by the name of torch.
    """

    model: str
    max_new_tokens: int
    temperature: float
    device: str | None
    dtype: str

    def load(self) -> None:
        """Loads the model if this process has not. Raises ConfigError if it cannot be loaded, or has no template."""
        self._parts()

    def reply(self, messages: Messages) -> str:
        """The model's reply, as ``ChatModel.reply``."""
        model, tokenizer = self._parts()
        inputs = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        generator = torch.Generator().manual_seed(zlib.crc32(json.dumps(list(messages)).encode()))
        with _lock:
            tokens = self._tokens(model, inputs["input_ids"].to(model.device), generator)
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        if not text.strip():
            raise NoReplyError(f"the model {self.model} replied with an empty message")
        return text

    def _parts(self) -> tuple[Any, Any]:
        with _lock:
            return _loaded(self.model, self.device or _device(), self.dtype)

    def _tokens(self, model: Any, input_1L: Any, generator: Any) -> list[int]:
        """Sampled tokens up to the end of the message; random numbers of the process are not used."""
        ends = _ends(model)
        tokens: list[int] = []
        cache = None
        with torch.inference_mode():
            while len(tokens) < self.max_new_tokens:
                output = model(input_ids=input_1L, past_key_values=cache, use_cache=True, logits_to_keep=1)
                logits_V, cache = output.logits[0, -1].float().cpu(), output.past_key_values
                if self.temperature == 0:
                    token = int(logits_V.argmax())
                else:
                    prob_V = (logits_V / self.temperature).softmax(-1)
                    token = int(torch.multinomial(prob_V, 1, generator=generator))
                if token in ends:
                    break
                tokens.append(token)
                input_1L = torch.tensor([[token]], device=model.device)
        return tokens


def _device() -> str:
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"


def _ends(model: Any) -> set[int]:
    ends = model.generation_config.eos_token_id
    return set(ends) if isinstance(ends, list) else {ends}


@lru_cache(maxsize=4)
def _loaded(source: str, device: str, dtype: str) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    import transformers

    if dtype not in ("float32", "bfloat16", "float16"):
        raise ConfigError(f"the dtype of a model must be float32, bfloat16 or float16, got {dtype!r}")
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model {source} cannot be loaded: {explain_load_error(source, error)}") from error
    if tokenizer.chat_template is None:
        raise ConfigError(f"the tokenizer of {source} has no chat template: name a model for conversations")
    return model.to(device).eval().requires_grad_(False), tokenizer
