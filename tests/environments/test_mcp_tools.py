"""Tools of real MCP servers, over standard input and output and over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmgrpo.environments.mcp_tools import McpEnvironment
from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt
from tests.test_tools import call

pytest.importorskip("mcp", reason="the extra mcp is not installed")

SERVER = '''
import sys
from io import BytesIO
from PIL import Image as Pillow
from mcp.server import MCPServer
from mcp.types import AudioContent, ImageContent, TextContent
import base64, wave

server = MCPServer("numbers")

@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)

@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("no such number")

@server.tool()
def patch(width: int) -> list[TextContent | ImageContent]:
    """Shows a patch."""
    file = BytesIO()
    Pillow.new("RGB", (width, 2), "red").save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return [TextContent(type="text", text="a patch"), ImageContent(type="image", data=data, mime_type="image/png")]

@server.tool()
def beep(samples: int) -> list[AudioContent]:
    """Plays a beep."""
    file = BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", "not compressed"))
        sound.writeframes(b"\\x00\\x40" * samples)
    return [AudioContent(type="audio", data=base64.b64encode(file.getvalue()).decode(), mime_type="audio/wav")]

if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run("stdio")
'''


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mcp") / "server.py"
    path.write_text(SERVER)
    return path


@pytest.fixture(scope="module")
def url(script: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(script), str(port)], stderr=subprocess.DEVNULL)
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/mcp"
    process.terminate()
    process.wait()


def check(environment: McpEnvironment) -> None:
    tools = [tool["function"] for tool in environment.reset(Prompt("?")).tools]
    assert [tool["name"] for tool in tools] == ["add", "fail", "patch", "beep"]
    assert tools[0]["description"] == "Adds two numbers."
    assert tools[0]["parameters"]["required"] == ["a", "b"]
    turn = environment.step(call("add", a=1, b=2) + call("patch", width=3) + call("fail") + call("add", a=1))
    texts = [result.text for result in turn.results]
    assert texts[:2] == ["3", "a patch"]
    assert json.loads(texts[2]) == {"error": "RuntimeError: Error executing tool fail"}
    assert json.loads(texts[3]) == {"error": "TypeError: add: missing arguments: b"}
    assert [(image.size, image.getpixel((0, 0))) for image in turn.images] == [((3, 2), (255, 0, 0))]
    (audio,) = environment.step(call("beep", samples=80)).audios
    assert (audio.sampling_rate, audio.values.tolist()) == (8000, [[0.5] * 80])
    assert environment.step("3").done


@pytest.mark.nightly
def test_a_server_over_standard_input_and_output(script: Path) -> None:
    environment = McpEnvironment(command=[sys.executable, str(script)])
    try:
        check(environment)
    finally:
        environment.close()
    assert not environment._thread.is_alive()


@pytest.mark.nightly
def test_a_server_over_http(url: str) -> None:
    environment = McpEnvironment(url=url)
    try:
        check(environment)
    finally:
        environment.close()
    with pytest.raises(ConfigError, match="the MCP server has no tool multiply; it has add, fail, patch, beep"):
        McpEnvironment(url=url, tools=["multiply"])


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(ConfigError, match="mcp needs either url, or command"):
        McpEnvironment()
    with pytest.raises(ConfigError, match="mcp has no program 'no-such-server'"):
        McpEnvironment(command=["no-such-server"])
    with pytest.raises(ConfigError, match="does not answer"):
        McpEnvironment(command=[sys.executable, "-c", "pass"])
