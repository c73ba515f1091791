"""Pages of MiniWoB++ in a browser: a policy sees screenshots and acts by mouse and keyboard."""

from __future__ import annotations

import atexit
import base64
import re
import shutil
import tempfile
import threading
import time
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Protocol, final

from PIL import Image

from mmgrpo.environment import Environment, Turn
from mmgrpo.environments.seeds import seed_of
from mmgrpo.errors import ConfigError, MissingPackageError, ProcessLostError
from mmgrpo.system.extras import missing, required
from mmgrpo.system.process_guard import GuardedProcess
from mmgrpo.system.targets import import_attribute
from mmgrpo.types import Prompt

ACTION_PARSER = "mmgrpo.rewards.grounding.action_parsing:parse_actions"
"""The parser of the reward ``gui_action``."""

WIDTH, HEIGHT = 160, 210
"""Size of a task in pixels."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVER = "chromedriver"
PORT = re.compile(r"started successfully on port (\d+)")
START_S = 60.0
"""Seconds that the driver gets to start."""

OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--force-device-scale-factor=1", "--disable-smooth-scrolling", "--window-size=320,320",
    "--disable-background-timer-throttling",
)  # fmt: skip

BEGIN = """
Math.seedrandom(arguments[0]); core.EPISODE_MAX_TIME = 1e9; core.startEpisodeReal();
const query = document.getElementById('query'); return query ? query.innerText : '';
"""
TWO_FRAMES = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
OUTCOME = "return [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL];"

CLICKS = {"click": ("left", 1), "double_click": ("left", 2), "right_click": ("right", 1)}
SCROLLS = {"up": (0, -100), "down": (0, 100), "left": (-100, 0), "right": (100, 0)}
"""Pixels of a scroll, to the right and down."""
KINDS = (*CLICKS, "drag", "scroll", "type", "key")


class PageAction(Protocol):
    """An action that ``ACTION_PARSER`` returns."""

    kind: str
    text: str | None

    @property
    def position(self) -> tuple[float, float] | None:
        """The point, or the center of the box."""
        ...

    @property
    def end(self) -> tuple[float, float] | None:
        """The end of a drag."""
        ...


@final
class _Browser:
    """A headless browser with a tab per conversation; one command at a time."""

    def __init__(self) -> None:
        browser = next(filter(None, map(shutil.which, BROWSERS)), None)
        driver = shutil.which(DRIVER)
        if browser is None or driver is None:
            raise MissingPackageError(
                "the environment miniwob needs Chromium and its driver: apt-get install chromium chromium-driver"
            )
        webdriver = required("selenium.webdriver", "the environment miniwob")
        remote = required("selenium.webdriver.chrome.remote_connection", "the environment miniwob")
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for option in OPTIONS:
            options.add_argument(option)
        with tempfile.TemporaryFile() as output:
            self._process = GuardedProcess([driver, "--port=0"], output=output)
            atexit.register(self._process.end)
            try:
                connection = remote.ChromeRemoteConnection(f"http://127.0.0.1:{_port(output)}", ignore_proxy=True)
                self._driver = webdriver.Remote(connection, options=options)
            except BaseException:  # the next conversation starts another one
                self._process.end()
                raise
        self._first_tab = self._driver.current_window_handle
        self._lock = threading.Lock()

    def open(self, url: str) -> str:
        """Opens a tab and returns its handle."""
        with self._lock:
            self._driver.switch_to.window(self._first_tab)  # the current one may be closed
            self._driver.switch_to.new_window("tab")
            self._driver.get(url)
            return self._driver.current_window_handle

    def script(self, tab: str, script: str, *arguments: Any) -> Any:
        """The result of a script in a tab."""
        with self._lock:
            self._driver.switch_to.window(tab)
            return self._driver.execute_script(script, *arguments)

    def command(self, tab: str, name: str, **arguments: Any) -> Any:
        """The result of a command of the DevTools protocol in a tab."""
        with self._lock:
            self._driver.switch_to.window(tab)
            return self._driver.execute("executeCdpCommand", {"cmd": name, "params": arguments})["value"]

    def wait_for_frames(self, tab: str) -> None:
        """Waits until the page of a tab shows the effect of an event: two frames."""
        with self._lock:
            self._driver.switch_to.window(tab)
            self._driver.execute_async_script(TWO_FRAMES)

    def close(self, tab: str) -> None:
        """Closes a tab."""
        with self._lock:
            self._driver.switch_to.window(tab)
            self._driver.close()


def _port(output: IO[bytes]) -> int:
    """The port in the output of a driver that starts."""
    deadline, text = time.monotonic() + START_S, ""
    while time.monotonic() < deadline:
        output.seek(0)
        text = output.read().decode(errors="replace")
        if port := PORT.search(text):
            return int(port[1])
        time.sleep(0.02)
    raise ProcessLostError(f"{DRIVER} does not start within {START_S:g} s; its output: {text[-500:]!r}")


_browsers: list[_Browser] = []  # of this process, one at most
_start_lock = threading.Lock()


def _browser() -> _Browser:
    with _start_lock:
        if not _browsers:
            _browsers.append(_Browser())
        return _browsers[0]


@final
class MiniwobEnvironment(Environment):
    """A task of MiniWoB++, such as ``click-button``, on its real page in headless Chromium.

    The integer in the column ``seed`` of a row determines the page, so the members of a group have the same one. The
    opening turn is the instruction with a screenshot of 160 x 210 pixels; after each action the reply is another
    screenshot. Actions have the forms of the reward ``gui_action``: ``click(x=80, y=120)``, ``type(content='..')``,
    JSON; positions are pixels of the screenshot. Actions are click, double_click, right_click, drag (with an end, as in
    ``drag(start_point=[10, 60], end_point=[80, 60])``), scroll (by 100 pixels, ``scroll(x=80, y=120,
    direction='down')``), type and key. The reward of the last turn is that of the task, -1 to 1, without its deduction
    for time; those of earlier turns are 0. Each conversation has a tab of the one browser of the process, which ends
    with the process, also if that is killed.

    Source: MiniWoB++ (Liu et al. 2018, arXiv:1802.08802).
    """

    def __init__(self, task: str) -> None:
        """Starts the browser, once per process.

        Args:
            task: name of the task.

        Raises:
            ConfigError: there is no such task.
            MissingPackageError: ``miniwob`` or the browser is not installed.
        """
        package = find_spec("miniwob")
        if package is None:
            raise missing("miniwob", "the environment miniwob")
        required("selenium", "the environment miniwob")
        folder = Path(str(package.origin)).parent / "html" / "miniwob"
        page = folder / f"{task}.html"
        if "/" in task or not page.is_file():
            names = ", ".join(sorted(path.stem for path in folder.glob("*.html")))
            raise ConfigError(f"MiniWoB++ has no task {task!r}; it has {names}")
        self._url = page.as_uri()
        self._parse = import_attribute(ACTION_PARSER)
        self._browser = _browser()
        self._tab: str | None = None

    def reset(self, prompt: Prompt) -> Turn:
        """The instruction and the first screenshot.

        Raises: DataError if the row has no integer in the column ``seed``.
        """
        seed = seed_of(prompt, "the task")
        self._tab = self._browser.open(self._url)
        instruction = self._browser.script(self._tab, BEGIN, str(seed))
        return Turn(text=str(instruction).strip(), images=[self._screenshot()])

    def step(self, text: str) -> Turn:
        """Performs the action of a turn."""
        actions = self._parse(text)
        error = self._performed(actions[0]) if len(actions) == 1 else f"{len(actions)} actions, where one is required"
        done, reward = self._browser.script(str(self._tab), OUTCOME)
        if done:
            return Turn(reward=float(reward), done=True)
        return Turn(text="" if error is None else f"Error: {error}", images=[self._screenshot()], reward=0.0)

    def close(self) -> None:
        """Closes the tab."""
        if self._tab is not None:
            self._browser.close(self._tab)
            self._tab = None

    def _screenshot(self) -> Image.Image:
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
        data = self._command("Page.captureScreenshot", format="png", clip=clip)["data"]
        return Image.open(BytesIO(base64.b64decode(data))).convert("RGB")

    def _performed(self, action: PageAction) -> str | None:
        """Performs an action; returns the reason if it cannot be performed."""
        if action.kind in ("type", "key"):
            if not action.text:
                return f"{action.kind} needs a text"
            if action.kind == "type":
                self._command("Input.insertText", text=action.text)
            else:
                for event in ("keyDown", "keyUp"):
                    self._command("Input.dispatchKeyEvent", type=event, key=action.text)
            return None
        if action.kind not in KINDS:
            return f"there is no action {action.kind!r:.40}; actions are {', '.join(KINDS)}"
        for name, point in (("a position", action.position), ("an end", action.end or action.position)):
            if not _is_on_page(point):
                return f"{action.kind} needs {name} from (0, 0) to ({WIDTH - 1}, {HEIGHT - 1})"
        assert action.position is not None
        if action.kind == "scroll":
            return self._scrolled(action.position, action.text)
        if action.kind == "drag":
            return self._dragged(action.position, action.end)
        button, count = CLICKS[action.kind]
        self._mouse("mouseMoved", action.position)
        for event in ("mousePressed", "mouseReleased"):
            self._mouse(event, action.position, button=button, clickCount=count)
        return None

    def _scrolled(self, point: tuple[float, float], direction: str | None) -> str | None:
        delta = SCROLLS.get((direction or "").strip().lower())
        if delta is None:
            return f"scroll needs a direction of {', '.join(SCROLLS)}"
        self._mouse("mouseWheel", point, deltaX=delta[0], deltaY=delta[1])
        self._browser.wait_for_frames(str(self._tab))
        return None

    def _dragged(self, start: tuple[float, float], end: tuple[float, float] | None) -> str | None:
        if end is None:
            return "drag needs an end, as in drag(start_point=[10, 60], end_point=[80, 60])"
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        self._mouse("mouseMoved", start)
        self._mouse("mousePressed", start, button="left", clickCount=1)
        for point in (middle, end):  # pages begin a drag with the first movement
            self._mouse("mouseMoved", point, button="left", buttons=1)
        self._mouse("mouseReleased", end, button="left", clickCount=1)
        return None

    def _mouse(self, event: str, point: tuple[float, float], **details: Any) -> None:
        x, y = point
        self._command("Input.dispatchMouseEvent", type=event, x=x, y=y, **details)

    def _command(self, name: str, **arguments: Any) -> Any:
        return self._browser.command(str(self._tab), name, **arguments)


def _is_on_page(point: tuple[float, float] | None) -> bool:
    x, y = point or (-1.0, -1.0)
    return 0 <= x < WIDTH and 0 <= y < HEIGHT
