"""Environments of verifiers: their dataset, their answers to a turn, and the reward of their rubric."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, final

from mmgrpo.environment import Environment, SupportsCalls, SupportsFinalReward, Turn
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.system.extras import install_command, required
from mmgrpo.system.targets import import_python_target, is_python_target
from mmgrpo.tool_calls import AssistantMessage, FunctionCall, ToolResult, bounded, calls_of, without_calls
from mmgrpo.types import Prompt

INPUTS = ("answer", "info", "task", "example_id")
"""Columns of a dataset of verifiers that are part of a rollout's input."""

VERSION = "0.1.10"

_lock = threading.Lock()
_loaded: dict[str, Any] = {}  # environments by source and settings: they hold no state of a rollout
_loop = asyncio.new_event_loop()
_thread: threading.Thread | None = None


@final
class VerifiersEnvironment(Environment, SupportsCalls, SupportsFinalReward):
    """A multi-turn environment of verifiers: ``SingleTurnEnv``, ``ToolEnv`` or another ``MultiTurnEnv``.

    The rows of the run are those of its dataset (``load_environment(..).get_dataset()``), with the columns ``prompt``,
    ``answer``, ``info`` and ``task``. It answers turns and ends rollouts by its own conditions; the reward of the last
    turn is that of its rubric. Its tools are those of the chat template; a call that cannot be read is text, as at a
    server of verifiers.

    Source: verifiers 0.1.10 (Brown 2025). Later versions require a client of a model server, and datasets below 4.7 or
    mcp below 2.3.
    """

    def __init__(self, source: str, settings: Mapping[str, Any] | None = None, max_chars: int = 4000) -> None:
        """Loads the environment, once per process.

        Args:
            source: ``python:module:function`` that returns the environment, or the name of an installed package of
                verifiers' environments.
            settings: arguments of the function.
            max_chars: maximum length of a message of the environment.

        Raises:
            MissingPackageError: ``verifiers`` is not installed.
            ConfigError: the environment cannot be loaded, has no turns, or its rubric scores groups.
        """
        self._max_chars = max_chars
        self._environment = _load(source, dict(settings or {}))
        self._state: Any = None
        self._messages: list[dict[str, Any]] = []
        self._schemas: dict[str, Mapping[str, Any]] = {}

    @property
    def instance(self) -> Any:
        """The state of the rollout."""
        return self._state

    def reset(self, prompt: Prompt) -> Turn:
        """The messages that the environment adds to those of the row, and its tools.

        Raises: DataError if the environment replaces the messages of the row.
        """
        messages = prompt.messages or [{"role": "user", "content": prompt.text}]
        inputs = {name: prompt.columns[name] for name in INPUTS if name in prompt.columns}
        row = {"prompt": [dict(message) for message in messages], "example_id": 0, **inputs}
        self._state = _run(self._begin(row))
        self._messages = list(self._state["prompt"])
        if self._messages[: len(messages)] != row["prompt"]:
            raise DataError("the environment of verifiers replaces the prompt of the row; use the rows of its dataset")
        tools = list(self._state.get("oai_tools") or [])
        self._schemas = {tool["function"]["name"]: tool["function"] for tool in tools}
        opening = "\n".join(_content(message) for message in self._messages[len(messages) :])
        return Turn(text=bounded(opening, self._max_chars), tools=tools)

    def step(self, text: str) -> Turn:
        """The answer of the environment, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The answer of the environment; at the end the reward of its rubric."""
        read = calls_of(message, self._schemas) if self._schemas else message.calls
        calls = [call for call in read if call.error is None]
        new_messages = _run(self._advance(_assistant_message(message, calls)))
        if new_messages is None:
            return Turn(done=True, reward=self._state["reward"])
        texts = [bounded(_content(new_message), self._max_chars) for new_message in new_messages]
        if all(new_message["role"] == "tool" for new_message in new_messages):
            pairs = zip(calls, texts, strict=True)
            results = [ToolResult(call.name, text, arguments=call.arguments) for call, text in pairs]
            return Turn(text="\n".join(texts), results=results, role="tool")
        return Turn(text="\n".join(texts), role=new_messages[-1]["role"])

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """None: the conversation ends, and its sample is not scored."""
        del error

    def final_reward(self) -> float | None:
        """The reward of the rubric for the turns so far."""
        self._state["is_truncated"] = True
        _run(self._score())
        return self._state["reward"]

    def close(self) -> None:
        """Runs the clean-up of the environment, unless it has ended the rollout."""
        if self._state is not None and not self._state["is_completed"]:
            _run(self._environment._cleanup(self._state))

    async def _begin(self, row: dict[str, Any]) -> Any:
        state = await self._environment.init_state(row, client=None, model="policy")
        return await self._environment.setup_state(state) or state

    async def _advance(self, message: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Appends a turn of the policy; returns the messages after it, or None at the end, which is scored."""
        state, environment = self._state, self._environment
        step = {
            "prompt": list(self._messages), "completion": [message], "response": None, "tokens": None, "reward": None,
            "advantage": None, "is_truncated": False, "trajectory_id": state["trajectory_id"], "extras": {},
        }  # fmt: skip
        await environment.add_trajectory_step(state, step)
        if not await environment.is_completed(state):
            messages = list(await environment.get_prompt_messages(state))
            history = [*self._messages, message]
            if state.get("final_env_response") is None:
                if messages[: len(history)] != history:
                    raise DataError("the environment of verifiers rewrites earlier messages, which are sampled already")
                self._messages = messages
                return messages[len(history) :]
            await environment.is_completed(state)
        await self._score()
        return None

    async def _score(self) -> None:
        await self._environment.render_completion(self._state)
        await self._environment.rubric.score_rollout(self._state)


def _load(source: str, settings: dict[str, Any]) -> Any:
    """The environment of a source, made once per process. Raises ConfigError if it is not one of turns and samples."""
    package = required("verifiers", "the environment verifiers")
    if package.__version__ != VERSION:
        raise ConfigError(f"verifiers {package.__version__} is not supported: {install_command('verifiers')}")
    key = json.dumps([source, settings], sort_keys=True, default=repr)
    with _lock:
        if key not in _loaded:
            try:
                load = import_python_target(source) if is_python_target(source) else package.load_environment
                arguments = settings if is_python_target(source) else {"env_id": source, **settings}
                _loaded[key] = load(**arguments)
            except Exception as error:  # of the environment's own
                raise ConfigError(f"the environment {source} of verifiers cannot be loaded: {error}") from error
        environment = _loaded[key]
    if not isinstance(environment, package.MultiTurnEnv):
        raise ConfigError(f"{source} makes a {type(environment).__name__}; it must be a MultiTurnEnv of verifiers")
    rubrics = [environment.rubric, *getattr(environment.rubric, "rubrics", ())]
    if any(rubric._get_group_reward_funcs() for rubric in rubrics):
        raise ConfigError(f"the rubric of {source} scores groups; use a reward of mmgrpo for what compares samples")
    return environment


def _run(coroutine: Any) -> Any:
    """The result of a coroutine on the thread of all environments, since they may share clients."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_loop.run_forever, name="verifiers", daemon=True)
            _thread.start()
    return asyncio.run_coroutine_threadsafe(coroutine, _loop).result()


def _assistant_message(message: AssistantMessage, calls: Sequence[FunctionCall]) -> dict[str, Any]:
    tool_calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
        }
        for number, call in enumerate(calls)
    ]
    if not calls:
        return {"role": "assistant", "content": message.text}
    content = without_calls(message.text, begins_in_reasoning=message.begins_in_reasoning)
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}


def _content(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")
