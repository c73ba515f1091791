"""A language model as the other side of a conversation: a simulated world, a user, a partner."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, final

from mmgrpo.data.prompt_templates import fill_template
from mmgrpo.environment import Environment, SupportsOptionalRewards, Turn
from mmgrpo.environments.chat_models import ChatModel, LoadedModel, ServedModel
from mmgrpo.environments.unused_settings import require_unset
from mmgrpo.errors import ConfigError
from mmgrpo.system.json_requests import NoReplyError, RequestLimits, require_server
from mmgrpo.tool_calls import bounded
from mmgrpo.types import Prompt


@final
class SimulatedEnvironment(Environment, SupportsOptionalRewards):
    """Replies by a model at an OpenAI-compatible server, or by one that is loaded into the process.

    The model reads the instruction ``system``, in which ``{column}`` is a column of the row and ``{prompt}`` its text,
    and the turns so far; its reply is the next turn. A reply with ``done`` in it ends the conversation. With
    ``reward_tag`` the number in ``<tag>..</tag>`` is the reward of the policy's turn, and the policy does not read it.
    A model without a usable reply ends the conversation: its sample is not scored.

    Without ``url`` the model is loaded once for each process, and replies to one conversation at a time; its weights
    are frozen.

    Source: experience models as in DreamGym (arXiv:2511.03773), frozen partners as in EPO (arXiv:2502.12486).
    """

    def __init__(
        self,
        model: str,
        system: str,
        url: str | None = None,
        done: str = "[DONE]",
        reward_tag: str | None = None,
        max_new_tokens: int = 512,
        temperature: float = 0.0,
        max_chars: int = 4000,
        key_variable: str | None = None,
        timeout_s: float | None = None,
        retries: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        """Checks the settings; the server is called, or the model loaded, with the first conversation.

        Args:
            model: name of the model at the server; without one a path or hub id of a causal language model.
            system: instruction to the model.
            url: base URL of the server, such as ``http://127.0.0.1:8000/v1``; None: the model is loaded.
            done: text of a reply that ends the conversation.
            reward_tag: tag of the reward; None: turns have no rewards.
            max_new_tokens: maximum number of tokens of a reply.
            temperature: sampling temperature of the model.
            max_chars: maximum length of a turn.
            key_variable: environment variable with the API key of the server; None sends none.
            timeout_s: time limit of a request to the server, in seconds; None: 50.
            retries: number of retries of a request to the server; None: 2.
            device: device of a loaded model; None: the GPU of the process, or the CPU.
            dtype: data type of a loaded model: float32, bfloat16 or float16; None: bfloat16.

        Raises:
            ConfigError: a setting is not allowed, or one of a server is set without ``url``, or of a loaded model with
                it.
        """
        if url is None:
            of_server = {"key_variable": key_variable, "timeout_s": timeout_s, "retries": retries}
            require_unset("simulated", "set url for a model at a server, or remove it", **of_server)
        else:
            require_unset("simulated", "remove url for a loaded model, or remove it", device=device, dtype=dtype)
        timeout_s, retries = 50.0 if timeout_s is None else timeout_s, 2 if retries is None else retries
        if not done or max_new_tokens < 1 or max_chars < 1 or not timeout_s > 0 or retries < 0 or temperature < 0:
            raise ConfigError(
                "simulated needs a text done, max_new_tokens >= 1, max_chars >= 1, timeout_s > 0, retries >= 0 and "
                f"temperature >= 0, got {done!r}, {max_new_tokens}, {max_chars}, {timeout_s}, {retries}, {temperature}"
            )
        self._model: ChatModel
        if url is None:
            self._model = LoadedModel(
                model=model,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                device=device,
                dtype=dtype or "bfloat16",
            )
        else:
            require_server(url, "the url of the environment simulated")
            self._model = ServedModel(
                url=url,
                model=model,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                limits=RequestLimits(timeout_s=timeout_s, retries=retries),
                key_variable=key_variable,
            )
        self._system, self._done, self._max_chars = system, done, max_chars
        tag = re.escape(reward_tag or "")
        self._reward = re.compile(rf"<{tag}>\s*([^<]{{1,40}}?)\s*</{tag}>") if reward_tag else None
        self._messages: list[dict[str, str]] = []

    @classmethod
    def may_reward(cls, settings: Mapping[str, Any]) -> bool:
        """Whether there is a tag of the reward."""
        return settings.get("reward_tag") is not None

    def reset(self, prompt: Prompt) -> Turn:
        """Writes the instruction; the conversation begins with the policy's turn.

        Raises: DataError if the instruction names a column that the row does not have; ConfigError if the model cannot
            be loaded.
        """
        self._messages = [{"role": "system", "content": fill_template(prompt, self._system, {})}]
        if isinstance(self._model, LoadedModel):
            self._model.load()
        return Turn()

    def step(self, text: str) -> Turn:
        """The model's reply."""
        self._messages.append({"role": "user", "content": text})
        reply = self._model.reply(self._messages)
        self._messages.append({"role": "assistant", "content": reply})
        reward = None
        if self._reward is not None:
            reward = _number((self._reward.findall(reply) or [""])[-1])
            reply = self._reward.sub("", reply)
        return Turn(text=bounded(reply.strip(), self._max_chars), reward=reward, done=self._done in reply)


def _number(text: str) -> float:
    """The reward that a model states. Raises NoReplyError if that is no number."""
    try:
        return float(text)
    except ValueError as error:
        raise NoReplyError(f"the model states no reward, but {text!r}") from error
