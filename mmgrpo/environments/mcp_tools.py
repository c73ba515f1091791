"""Tools of servers of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import base64
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any, final

from PIL import Image

from mmgrpo.environment import Environment, SupportsCalls, Turn
from mmgrpo.errors import ConfigError
from mmgrpo.system.extras import required
from mmgrpo.system.process_guard import piped_command
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.tools import Tool, ToolEnvironment
from mmgrpo.types import Prompt

CONNECT_S = 30.0
"""Seconds within which a server must answer."""


@final
class McpEnvironment(Environment, SupportsCalls):
    """The tools of a server, with one session for each conversation.

    Texts and images of a result are those of the turn; an error of the server is an error that the model reads. On
    Linux the program of a command ends with this process, also after SIGKILL.

    Source: the Model Context Protocol, by its package ``mcp``.
    """

    gives_rewards = False

    def __init__(
        self,
        url: str | None = None,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        tools: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        """Connects to the server and lists its tools.

        Args:
            url: address of a server with streamable HTTP.
            command: program and arguments of a server that talks over standard input and output.
            env: its environment variables.
            tools: names of the tools that the policy may call; None: all.
            **settings: settings of ``ToolEnvironment``.

        Raises:
            MissingPackageError: ``mcp`` is not installed.
            ConfigError: not exactly one of ``url`` and ``command`` is set, the server does not answer, or it lacks one
                of the tools.
        """
        if (url is None) == (not command):
            raise ConfigError("mcp needs either url, or command with the program and arguments of a server")
        if command and shutil.which(command[0], path=(env or {}).get("PATH")) is None:
            raise ConfigError(f"mcp has no program {command[0]!r}: set command to one that is installed, or its path")
        package = required("mcp", "the environment mcp")
        program, *arguments = piped_command(command) if command and sys.platform == "linux" else command or ("",)
        server = url or package.StdioServerParameters(command=program, args=arguments, env=dict(env or {}) or None)
        self._client: Any = None
        self._error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        ready = threading.Event()
        session = self._session(package.Client(server), ready)
        self._thread = threading.Thread(target=self._run, args=(session, ready), name="mcp session", daemon=True)
        self._thread.start()
        if not ready.wait(CONNECT_S) or self._error is not None:
            self.close()
            raise ConfigError(f"the MCP server {url or command} does not answer: {self._error or 'time is over'}")
        client: Any = self._client
        listed = {tool.name: tool for tool in self._result(client.list_tools()).tools}
        if unknown := [name for name in tools or () if name not in listed]:
            self.close()
            raise ConfigError(f"the MCP server has no tool {', '.join(unknown)}; it has {', '.join(listed)}")
        self._tools = ToolEnvironment([self._tool(listed[name]) for name in tools or listed], **settings)

    def reset(self, prompt: Prompt) -> Turn:
        """The tools of the server."""
        return self._tools.reset(prompt)

    def step(self, text: str) -> Turn:
        """The results of the calls in a text, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The results of the called tools."""
        return self._tools.respond(message)

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """As ``ToolEnvironment.interrupted``."""
        return self._tools.interrupted(error)

    def close(self) -> None:
        """Ends the session, and the program of a command."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(CONNECT_S)

    def _run(self, session: Any, ready: threading.Event) -> None:
        try:
            self._loop.run_until_complete(session)
        except BaseException as error:  # reported where the connection is awaited
            self._error = error
        finally:
            ready.set()
            self._loop.close()

    async def _session(self, client: Any, ready: threading.Event) -> None:
        async with client as self._client:
            ready.set()
            await self._closing.wait()

    def _result(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _tool(self, tool: Any) -> Tool:
        schema = {
            "name": tool.name,
            "description": tool.description or tool.name,
            "parameters": dict(tool.input_schema),
        }
        return Tool(tool.name, schema, self._function(tool.name))

    def _function(self, name: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            result = self._result(self._client.call_tool(name, arguments))
            blocks = [_block(part) for part in result.content]
            if result.is_error:
                raise RuntimeError(" ".join(block["text"] for block in blocks if block["type"] == "text"))
            return blocks or ""

        return call


def _block(part: Any) -> dict[str, Any]:
    """A part of a result as a content block; kinds other than texts, images and audio are named in a text."""
    if part.type == "audio":
        return {"type": "audio", "audio": base64.b64decode(part.data)}
    if part.type == "image":
        return {"type": "image", "image": Image.open(BytesIO(base64.b64decode(part.data)))}
    return {"type": "text", "text": part.text if part.type == "text" else f"({part.type})"}
