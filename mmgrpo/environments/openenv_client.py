"""Environments of OpenEnv servers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from mmgrpo.environment import Environment, SupportsCalls, Turn
from mmgrpo.environments.unused_settings import require_unset
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.system.bounded_http import download
from mmgrpo.system.extras import required
from mmgrpo.system.json_requests import require_server
from mmgrpo.tool_calls import AssistantMessage, bounded
from mmgrpo.tools import Tool, ToolEnvironment
from mmgrpo.types import Prompt

MAX_SCHEMA_BYTES = 2**20

NO_OBSERVATION = ("done", "reward", "metadata")
"""Fields of an observation that are not part of its text."""


@final
class OpenEnvEnvironment(Environment, SupportsCalls):
    """An environment of an OpenEnv server, with one session for each conversation.

    With ``action`` a turn of the policy is that field of an action. Without it the policy calls the tool ``step`` with
    the fields of the server's schema of actions, and a turn without a call ends the conversation. An error of the
    server is a text that the model reads. Every turn has the reward of its steps.

    Source: OpenEnv, by its package ``openenv-core``.
    """

    def __init__(
        self,
        url: str,
        action: str | None = None,
        observation: str | None = None,
        columns: Sequence[str] | None = None,
        max_chars: int = 4000,
        timeout_s: float = 60.0,
        **settings: Any,
    ) -> None:
        """Connects to the server.

        Args:
            url: its address.
            action: field of an action that is the turn's text; None: actions are calls of a tool.
            observation: field of an observation that is the text of the answer; None: the observation as JSON.
            columns: columns of the row that are arguments of the server's reset; None: ``seed``, if the row has it.
            max_chars: maximum length of an answer.
            timeout_s: seconds that a request may take.
            **settings: without ``action``, settings of ``ToolEnvironment``.

        Raises:
            MissingPackageError: ``openenv-core`` is not installed.
            ConfigError: the server does not answer, its actions have no such field, or a setting would have no effect.
        """
        if action is not None:
            require_unset("openenv", "it is one of the tool: remove it, or action", **settings)
        require_server(url, "url of the environment openenv")
        package = required("openenv.core", "the environment openenv")
        self._action, self._observation = action, observation
        self._columns, self._max_chars = columns, max_chars
        self._reward, self._done = 0.0, False
        try:
            schema = json.loads(download(f"{url.rstrip('/')}/schema", limit=MAX_SCHEMA_BYTES, timeout_s=timeout_s))
            client = package.GenericEnvClient(base_url=url, message_timeout_s=timeout_s)
            self._client = client.sync().connect()
        except Exception as error:  # of the package, of the connection and of JSON
            raise ConfigError(f"the OpenEnv server {url} does not answer: {error}") from error
        properties = {**schema["action"].get("properties", {})}
        properties.pop("metadata", None)
        if action is not None and action not in properties:
            self.close()
            raise ConfigError(f"action={action!r}: actions of {url} have the fields {', '.join(properties)}")
        parameters = {**schema["action"], "properties": properties}
        step = {"name": "step", "description": "Takes an action in the environment.", "parameters": parameters}
        self._tools = None if action else ToolEnvironment([Tool("step", step, self._call)], **settings)

    def reset(self, prompt: Prompt) -> Turn:
        """The first observation, and the tool.

        Raises: DataError if the row has none of a column that is set.
        """
        if missing := [name for name in self._columns or () if name not in prompt.columns]:
            raise DataError(f"the row has no {', '.join(missing)}: change 'columns' of the environment openenv")
        names = ("seed",) if self._columns is None else self._columns
        arguments = {name: prompt.columns[name] for name in names if name in prompt.columns}
        result = self._client.reset(**arguments)
        turn = Turn() if self._tools is None else self._tools.reset(prompt)
        return replace(turn, text=self._text(result.observation))

    def step(self, text: str) -> Turn:
        """The next observation, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The next observation with the reward; at the end only the reward."""
        self._reward = 0.0
        turn = Turn(text=self._answer(message.text)) if self._tools is None else self._tools.respond(message)
        return replace(turn, reward=self._reward, done=turn.done or self._done)

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """As ``ToolEnvironment.interrupted``; without a tool, the end."""
        return None if self._tools is None else self._tools.interrupted(error)

    def close(self) -> None:
        """Ends the session."""
        self._client.close()

    def _answer(self, text: str) -> str:
        try:
            return self._call(**{str(self._action): text})
        except RuntimeError as error:
            return bounded(str(error), self._max_chars)

    def _call(self, **action: Any) -> str:
        """The text of the observation after an action. Raises RuntimeError for an error of the server."""
        if self._done:
            raise RuntimeError("the episode has ended")
        result = self._client.step(action)
        self._reward += float(result.reward or 0.0)
        self._done = bool(result.done)
        return self._text(result.observation)

    def _text(self, observation: Mapping[str, Any]) -> str:
        if self._observation is not None:
            text = str(observation.get(self._observation, ""))
        else:
            fields = {name: value for name, value in observation.items() if name not in NO_OBSERVATION}
            text = json.dumps(fields, ensure_ascii=False)
        return bounded(text, self._max_chars)
