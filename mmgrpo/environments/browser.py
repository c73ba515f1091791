"""A headless Chromium, driven through the pipe of its DevTools protocol.

Source: https://chromedevtools.github.io/devtools-protocol; messages are JSON, each followed by a zero byte.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, final

from mmgrpo.errors import MissingPackageError, ProcessLostError
from mmgrpo.system.process_guard import GuardedProcess

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
START_S = 60.0
"""Seconds that the browser gets to start."""
COMMAND_S = 60.0
"""Seconds that a command gets."""
CHUNK = 65_536

OPTIONS = (
    "--headless=new", "--no-sandbox", "--no-first-run", "--disable-gpu", "--in-process-gpu", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--force-device-scale-factor=1", "--disable-smooth-scrolling", "--window-size=320,320",
    "--disable-background-timer-throttling", "--disable-background-networking", "--disable-component-update",
    "--disable-extensions", "--disable-sync", "--mute-audio", "--password-store=basic", "--renderer-process-limit=4",
    "--remote-debugging-pipe",
)  # fmt: skip
IN_TEMPORARY_FOLDER = 'exec "$0" "$@" --user-data-dir="$TMPDIR/profile" about:blank'

LOADED = """new Promise(done =>
  document.readyState === 'complete' ? done() : addEventListener('load', () => setTimeout(done)))"""


@dataclass(frozen=True, slots=True)
class BrowserCommand:
    """A command of the protocol: domain and method, and its parameters."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@final
class Browser:
    """A browser of this process, which ends with it, also by SIGKILL; tabs work side by side.

    Source: Chrome DevTools Protocol; flat sessions, one for each tab.
    """

    def __init__(self, feature: str) -> None:
        """Starts the browser.

        Args:
            feature: the feature that needs it, in the user's words.

        Raises:
            MissingPackageError: no browser is installed.
            ProcessLostError: it does not start.
        """
        program = next(filter(None, map(shutil.which, BROWSERS)), None)
        if program is None:
            raise MissingPackageError(f"{feature} needs Chromium: apt-get install chromium")
        self._ids = itertools.count(1)
        self._replies: dict[int, Future[Mapping[str, Any]]] = {}
        self._has_ended = self._is_closed = False
        self._lock = threading.Lock()
        command_end, self._commands = os.pipe()
        self._messages, message_end = os.pipe()
        with tempfile.TemporaryFile() as output:
            command = ["sh", "-c", IN_TEMPORARY_FOLDER, program, *OPTIONS]
            self._process = GuardedProcess(command, output=output, files=[command_end, message_end])
            os.close(command_end)
            os.close(message_end)
            atexit.register(self.end)
            self._reader = threading.Thread(target=self._read, name="browser", daemon=True)
            self._reader.start()
            try:
                self.results([BrowserCommand("Browser.getVersion")], limit_s=START_S)
            except (ProcessLostError, TimeoutError) as error:
                self.end()
                output.seek(0)
                text = output.read().decode(errors="replace")[-500:]
                raise ProcessLostError(
                    f"{program} does not start within {START_S:g} s; its output: {text!r}"
                ) from error

    @property
    def pid(self) -> int:
        """Process id of the guard, which started the browser."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the browser has ended."""
        return self._has_ended

    def results(
        self, commands: Sequence[BrowserCommand], session: str | None = None, *, limit_s: float | None = None
    ) -> list[Any]:
        """Sends commands, in order, and waits for their results.

        Args:
            commands: the commands.
            session: session of a tab; None: the browser.
            limit_s: seconds that they get; None: ``COMMAND_S``.

        Returns:
            The result of each.

        Raises:
            ProcessLostError: the browser has ended.
            TimeoutError: a result does not come in time.
            RuntimeError: a command fails.
        """
        deadline = time.monotonic() + (COMMAND_S if limit_s is None else limit_s)
        replies = [(command, self._send(command, session)) for command in commands]
        return [_result(command, reply, deadline) for command, reply in replies]

    def tab(self, *, is_visible: bool) -> Tab:
        """A new, empty tab.

        Args:
            is_visible: whether its page is visible while others are used, in a separate window; screenshots of other
                tabs take a second, and a visible page takes processor time as often as it changes.

        Returns:
            The tab.
        """
        (created,) = self.results(
            [BrowserCommand("Target.createTarget", {"url": "about:blank", "newWindow": is_visible})]
        )
        target = {"targetId": created["targetId"], "flatten": True}
        (attached,) = self.results([BrowserCommand("Target.attachToTarget", target)])
        return Tab(self, attached["sessionId"])

    def end(self) -> None:
        """Ends the browser; returns when it has ended."""
        atexit.unregister(self.end)
        with self._lock:
            is_first, self._has_ended = not self._is_closed, True
            if not self._is_closed:
                os.close(self._commands)  # which ends the browser, also without its guard
                self._is_closed = True
        self._process.end()
        if is_first:
            self._reader.join()
            os.close(self._messages)

    def _send(self, command: BrowserCommand, session: str | None) -> Future[Mapping[str, Any]]:
        reply: Future[Mapping[str, Any]] = Future()
        with self._lock:
            number = next(self._ids)
            message = {"id": number, "method": command.name, "params": command.arguments}
            data = json.dumps(message if session is None else {**message, "sessionId": session}).encode() + b"\0"
            self._replies[number] = reply
            try:
                while data and not self._has_ended:
                    data = data[os.write(self._commands, data) :]
            except BrokenPipeError:
                self._has_ended = True
            if self._has_ended and self._replies.pop(number, None):
                reply.set_exception(ProcessLostError("the browser has ended"))
        return reply

    def _read(self) -> None:
        """Reads messages until the browser ends; events are not used."""
        rest = b""
        while data := os.read(self._messages, CHUNK):
            *messages, rest = (rest + data).split(b"\0")
            for message in map(json.loads, messages):
                if reply := self._replies.pop(message.get("id"), None):
                    reply.set_result(message)
        with self._lock:
            self._has_ended = True
            for reply in self._replies.values():
                reply.set_exception(ProcessLostError("the browser has ended"))
            self._replies.clear()


@final
class Tab:
    """A tab that has the focus, as do the others; its page may be loaded again."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.run(BrowserCommand("Emulation.setFocusEmulationEnabled", {"enabled": True}))

    def run(self, *commands: BrowserCommand) -> list[Any]:
        """The results of commands; raises as ``Browser.results``."""
        return self._browser.results(commands, self._session)

    def load(self, url: str) -> None:
        """Loads a page, with an empty state, also if it is there already."""
        (loaded,) = self.run(BrowserCommand("Page.navigate", {"url": url}))
        if error := loaded.get("errorText"):
            raise RuntimeError(f"the browser cannot load {url}: {error}")
        self._evaluate(LOADED)

    def call(self, function: str, *arguments: Any) -> Any:
        """The result of a JavaScript function of the page, as JSON; raises RuntimeError if it raises.

        Args:
            function: its source text; it may be asynchronous.
            *arguments: its arguments, as JSON.

        Returns:
            The result.
        """
        return self._evaluate(f"({function})({', '.join(map(json.dumps, arguments))})")

    def _evaluate(self, expression: str) -> Any:
        arguments = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        (evaluated,) = self.run(BrowserCommand("Runtime.evaluate", arguments))
        if details := evaluated.get("exceptionDetails"):
            raise RuntimeError(f"the page raises {details.get('exception', {}).get('description', details['text'])}")
        return evaluated["result"].get("value")


def _result(command: BrowserCommand, reply: Future[Mapping[str, Any]], deadline: float) -> Any:
    try:
        message = reply.result(max(deadline - time.monotonic(), 0.0))
    except TimeoutError:
        raise TimeoutError(f"the browser does not answer {command.name}") from None
    if error := message.get("error"):
        raise RuntimeError(f"the browser answers {command.name} with {error.get('message')!r}")
    return message["result"]
