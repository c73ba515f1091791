"""A language model at a server as the other side of a conversation: a simulated world, a user, a partner."""

from __future__ import annotations

import json
import re
from typing import final

from mmgrpo.data.prompt_templates import fill_template
from mmgrpo.environment import Environment, Turn
from mmgrpo.errors import ConfigError
from mmgrpo.system.json_requests import NoReplyError, RequestLimits, post_json, require_server
from mmgrpo.tool_calls import bounded
from mmgrpo.types import Prompt


@final
class SimulatedEnvironment(Environment):
    """Replies by a model at an OpenAI-compatible server.

    The model reads the instruction ``system``, in which ``{column}`` is a column of the row and ``{prompt}`` its text,
    and the turns so far; its reply is the next turn. A reply with ``done`` in it ends the conversation. With
    ``reward_tag`` the number in ``<tag>..</tag>`` is the reward of the policy's turn, and the policy does not read it.
    A server without a usable reply ends the conversation: its sample is not scored.

    Source: experience models as in DreamGym (arXiv:2511.03773), frozen partners as in EPO (arXiv:2502.12486).
    """

    def __init__(
        self,
        url: str,
        model: str,
        system: str,
        done: str = "[DONE]",
        reward_tag: str | None = None,
        max_new_tokens: int = 512,
        temperature: float = 0.0,
        max_chars: int = 4000,
        key_variable: str | None = None,
        timeout_s: float = 50.0,
        retries: int = 2,
    ) -> None:
        """Checks the settings; the server is called with the first turn.

        Args:
            url: base URL of the server, such as ``http://127.0.0.1:8000/v1``.
            model: name of the model at the server.
            system: instruction to the model.
            done: text of a reply that ends the conversation.
            reward_tag: tag of the reward; None: turns have no rewards.
            max_new_tokens: maximum number of tokens of a reply.
            temperature: sampling temperature of the model.
            max_chars: maximum length of a turn.
            key_variable: environment variable with the API key; None sends none.
            timeout_s: time limit of a request, in seconds.
            retries: number of retries of a request.

        Raises:
            ConfigError: a setting is not allowed.
        """
        require_server(url, "the url of the environment simulated")
        if not done or max_new_tokens < 1 or max_chars < 1 or not timeout_s > 0 or retries < 0 or temperature < 0:
            raise ConfigError(
                "simulated needs a text done, max_new_tokens >= 1, max_chars >= 1, timeout_s > 0, retries >= 0 and "
                f"temperature >= 0, got {done!r}, {max_new_tokens}, {max_chars}, {timeout_s}, {retries}, {temperature}"
            )
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._request = {"model": model, "max_tokens": max_new_tokens, "temperature": temperature}
        self._limits = RequestLimits(timeout_s=timeout_s, retries=retries)
        self._system, self._done, self._max_chars, self._key_variable = system, done, max_chars, key_variable
        tag = re.escape(reward_tag or "")
        self._reward = re.compile(rf"<{tag}>\s*([^<]{{1,40}}?)\s*</{tag}>") if reward_tag else None
        self._messages: list[dict[str, str]] = []

    def reset(self, prompt: Prompt) -> Turn:
        """Writes the instruction; the conversation begins with the policy's turn.

        Raises: DataError if the instruction names a column that the row does not have.
        """
        self._messages = [{"role": "system", "content": fill_template(prompt, self._system, {})}]
        return Turn()

    def step(self, text: str) -> Turn:
        """The model's reply."""
        self._messages.append({"role": "user", "content": text})
        reply = self._reply()
        self._messages.append({"role": "assistant", "content": reply})
        reward = None
        if self._reward is not None:
            reward = _number((self._reward.findall(reply) or [""])[-1])
            reply = self._reward.sub("", reply)
        return Turn(text=bounded(reply.strip(), self._max_chars), reward=reward, done=self._done in reply)

    def _reply(self) -> str:
        request = {**self._request, "messages": self._messages}
        body = post_json(self._url, request, self._limits, key_variable=self._key_variable)
        try:
            content = json.loads(body)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise NoReplyError(f"{self._url} replied with no chat completion: {body[:200]!r}") from error
        if not isinstance(content, str) or not content.strip():
            raise NoReplyError(f"{self._url} replied with an empty message")
        return content


def _number(text: str) -> float:
    """The reward that a model states. Raises NoReplyError if that is no number."""
    try:
        return float(text)
    except ValueError as error:
        raise NoReplyError(f"the model states no reward, but {text!r}") from error
