"""Pages of MiniWoB++ in a browser: a policy reads screenshots or elements and acts by mouse and keyboard."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, final

from PIL import Image

from mmgrpo.environment import Environment, Turn
from mmgrpo.environments.browser import Browser, BrowserCommand, Tab
from mmgrpo.environments.seeds import seed_of
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.system.extras import missing
from mmgrpo.system.targets import import_attribute
from mmgrpo.types import Prompt

ACTION_PARSER = "mmgrpo.rewards.grounding.action_parsing:parse_actions"
"""The parser of the reward ``gui_action``."""

WIDTH, HEIGHT = 160, 210
"""Size of a task in pixels."""

OUTSIDE = (300, 300)
"""Position of the mouse before the first action: in the window, outside of the task."""

OBSERVATIONS = ("screenshot", "elements")

REPEATABLE = frozenset(("click-button", "click-link", "click-test", "click-test-2", "click-widget"))
"""Tasks whose episodes do not depend on earlier ones on the same page; pages of others are loaded for each episode."""

BEGIN = """seed => {
  window.listedElements = []; Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = 1e9; core.startEpisodeReal(); core.clearTimer();
  const query = document.getElementById('query'); return query ? query.innerText : '';
}"""
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
OUTCOME = "() => [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]"

ELEMENTS = """(width, height) => {
  const noPart = '#query, #query *, #reward-display, #reward-display *, #sync-task-cover, #click-canvas';
  const control = 'a, button, input, option, select, textarea';
  const short = text => text.replace(/\\s+/g, ' ').trim().slice(0, 100);
  const name = e => short([...e.childNodes].filter(n => n.nodeType === Node.TEXT_NODE).map(n => n.data).join(' '))
    || ['aria-label', 'title', 'alt', 'placeholder'].map(a => short(e.getAttribute(a) || '')).find(Boolean) || '';
  const isVisible = e => {
    const box = e.getClientRects()[0];
    if (!box || !box.width || !box.height) return false;
    const x = box.x + box.width / 2, y = box.y + box.height / 2;
    return x >= 0 && y >= 0 && x < width && y < height && e.contains(document.elementFromPoint(x, y));
  };
  const state = e => {
    if (['checkbox', 'radio'].includes(e.type)) return e.checked ? ' (checked)' : '';
    return e.matches('input, select, textarea') && e.value ? ` = ${JSON.stringify(short(e.value))}` : '';
  };
  const kind = e => e.localName === 'input' ? e.type : e.localName;
  window.listedElements = [...document.body.querySelectorAll('*')].filter(
    e => !e.matches(noPart) && (e.matches(control) || name(e)) && isVisible(e));
  return window.listedElements.map(
    (e, i) => `[${i + 1}] ${kind(e)}${name(e) && ` ${JSON.stringify(name(e))}`}${state(e)}`).join('\\n');
}"""
"""The visible elements of a page that have a text, or that are controls, numbered from 1."""

CENTER = """number => {
  const box = window.listedElements?.[number - 1]?.getClientRects()[0];
  return box ? [box.x + box.width / 2, box.y + box.height / 2] : null;
}"""

CLICKS = {"click": ("left", 1), "double_click": ("left", 2), "right_click": ("right", 1)}
SCROLLS = {"up": (0, -100), "down": (0, 100), "left": (-100, 0), "right": (100, 0)}
"""Pixels of a scroll, to the right and down."""
KINDS = (*CLICKS, "drag", "scroll", "type", "key")


class PageAction(Protocol):
    """An action that ``ACTION_PARSER`` returns."""

    kind: str
    text: str | None
    element: int | None

    @property
    def position(self) -> tuple[float, float] | None:
        """The point, or the center of the box."""
        ...

    @property
    def end(self) -> tuple[float, float] | None:
        """The end of a drag."""
        ...


@final
class _Tabs:
    """The tabs of one browser, which conversations use one after another."""

    def __init__(self) -> None:
        self._browser = Browser("the environment miniwob")
        self._free: dict[bool, dict[str, list[Tab]]] = {True: {}, False: {}}  # by whether they are visible, and by task
        self._lock = threading.Lock()

    @property
    def has_ended(self) -> bool:
        """Whether the browser has ended."""
        return self._browser.has_ended

    def end(self) -> None:
        """Ends the browser."""
        self._browser.end()

    def open(self, task: str, url: str, *, is_visible: bool) -> Tab:
        """A tab with the page of a task, as if it were loaded again."""
        with self._lock:
            free_tabs = self._free[is_visible]
            free = free_tabs.get(task)
            is_repeated = bool(free) and task in REPEATABLE
            free = free or max(free_tabs.values(), key=len, default=None)
            tab = free.pop() if free else None
        tab = tab or self._browser.tab(is_visible=is_visible)
        if not is_repeated:
            tab.load(url)
        return tab

    def close(self, task: str, tab: Tab, *, is_visible: bool) -> None:
        """Takes a tab back, with the mouse outside of the page."""
        x, y = OUTSIDE
        tab.run(BrowserCommand("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y}))
        with self._lock:
            self._free[is_visible].setdefault(task, []).append(tab)


_shared: list[_Tabs] = []  # of this process, one at most
_start_lock = threading.Lock()
os.register_at_fork(after_in_child=_shared.clear)  # a forked process starts a browser of the child


def _tabs() -> _Tabs:
    with _start_lock:
        if _shared and _shared[0].has_ended:
            _shared.pop().end()
        if not _shared:
            _shared.append(_Tabs())
        return _shared[0]


@final
class MiniwobEnvironment(Environment):
    """A task of MiniWoB++, such as ``click-button``, on its real page in headless Chromium.

    The integer in the column ``seed`` of a row determines the page, so the members of a group have the same one. The
    opening turn is the instruction with a screenshot of 160 x 210 pixels, the visible elements with a number each, or
    both; the reply to an action is that of the changed page. Actions have the forms of the reward ``gui_action``:
    ``click(x=80, y=120)``, ``click(element=3)``, ``type(content='..')``, JSON; positions are pixels of the screenshot,
    and the position of an element is its center. Actions are click, double_click, right_click, drag (with an end, as in
    ``drag(start_point=[10, 60], end_point=[80, 60])``), scroll (by 100 pixels, ``scroll(x=80, y=120,
    direction='down')``), type and key, both after a click if they have a position. The reward of the last turn is that
    of the task, -1 to 1, without its deduction for time; those of earlier turns are 0. Each conversation has a tab of
    the one browser of the process, which ends with the process, also if that is killed.

    Source: MiniWoB++ (Liu et al. 2018, arXiv:1802.08802).
    """

    def __init__(self, task: str | None = None, observation: Sequence[str] = ("screenshot",)) -> None:
        """Starts the browser, once per process.

        Args:
            task: name of the task; None: that in the column ``task`` of the row.
            observation: what the policy gets of a page, of ``screenshot`` and ``elements``: controls and texts, one a
                line, such as ``[3] button "ok"``. Shapes and colors are in screenshots alone.

        Raises:
            ConfigError: there is no such task or observation.
            MissingPackageError: ``miniwob`` or the browser is not installed.
        """
        package = find_spec("miniwob")
        if package is None:
            raise missing("miniwob", "the environment miniwob")
        if isinstance(observation, str) or not observation or not set(observation) <= set(OBSERVATIONS):
            raise ConfigError(
                f"observation of miniwob must list one or more of {', '.join(OBSERVATIONS)}, got {observation!r}"
            )
        self._folder = Path(str(package.origin)).parent / "html" / "miniwob"
        self._task, self._observation = task, tuple(observation)
        if task is not None and (error := self._task_error(task)):
            raise ConfigError(error)
        self._parse = import_attribute(ACTION_PARSER)
        self._tabs = _tabs()
        self._tab: Tab | None = None

    def reset(self, prompt: Prompt) -> Turn:
        """The instruction and the first observation.

        Raises: DataError if the row has no integer in the column ``seed``, or no task where the settings have none.
        """
        seed = seed_of(prompt, "the task")
        if self._task is None:
            self._task = str(prompt.columns.get("task"))
            if error := self._task_error(self._task):
                raise DataError(f"miniwob without the setting task needs one in the column 'task' of the row: {error}")
        url = (self._folder / f"{self._task}.html").as_uri()
        self._tab = self._tabs.open(self._task, url, is_visible="screenshot" in self._observation)
        return self._turn(str(self._tab.call(BEGIN, str(seed))).strip())

    def step(self, text: str) -> Turn:
        """Performs the action of a turn."""
        actions = self._parse(text)
        error = self._performed(actions[0]) if len(actions) == 1 else f"{len(actions)} actions, where one is required"
        done, reward = self._page.call(OUTCOME)
        if done:
            return Turn(reward=float(reward), done=True)
        return self._turn("" if error is None else f"Error: {error}", reward=0.0)

    def close(self) -> None:
        """Gives the tab back."""
        tab, self._tab = self._tab, None
        if tab is not None:
            self._tabs.close(str(self._task), tab, is_visible="screenshot" in self._observation)

    def _task_error(self, task: str) -> str | None:
        if "/" not in task and (self._folder / f"{task}.html").is_file():
            return None
        names = ", ".join(sorted(path.stem for path in self._folder.glob("*.html")))
        return f"MiniWoB++ has no task {task!r:.60}; it has {names}"

    @property
    def _page(self) -> Tab:
        assert self._tab is not None, "reset comes first"
        return self._tab

    def _turn(self, text: str, *, reward: float | None = None) -> Turn:
        """A text with the observation of the page."""
        elements = self._page.call(ELEMENTS, WIDTH, HEIGHT) if "elements" in self._observation else ""
        images = [self._screenshot()] if "screenshot" in self._observation else []
        return Turn(text="\n".join(filter(None, [text, elements])), images=images, reward=reward)

    def _screenshot(self) -> Image.Image:
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
        (captured,) = self._page.run(BrowserCommand("Page.captureScreenshot", {"format": "png", "clip": clip}))
        return Image.open(BytesIO(base64.b64decode(captured["data"]))).convert("RGB")

    def _performed(self, action: PageAction) -> str | None:
        """Performs an action; returns the reason if it cannot be performed."""
        if action.kind not in KINDS:
            return f"there is no action {action.kind!r:.40}; actions are {', '.join(KINDS)}"
        writes = action.kind in ("type", "key")
        if writes and not action.text:
            return f"{action.kind} needs a text"
        position = action.position
        if action.element is not None:
            position = self._page.call(CENTER, action.element)
            if position is None:
                return f"there is no element {action.element} among the numbered ones"
        if writes and position is None:
            return self._written(action)
        for name, point in (("a position", position), ("an end", action.end or position)):
            if not _is_on_page(point):
                return f"{action.kind} needs {name} from (0, 0) to ({WIDTH - 1}, {HEIGHT - 1})"
        assert position is not None
        if writes:
            self._clicked(position)
            return self._written(action)
        if action.kind == "scroll":
            return self._scrolled(position, action.text)
        if action.kind == "drag":
            return self._dragged(position, action.end)
        self._clicked(position, *CLICKS[action.kind])
        return None

    def _written(self, action: PageAction) -> None:
        if action.kind == "type":
            self._page.run(BrowserCommand("Input.insertText", {"text": action.text}))
        else:
            events = ("keyDown", "keyUp")
            self._page.run(*(BrowserCommand("Input.dispatchKeyEvent", {"type": e, "key": action.text}) for e in events))

    def _clicked(self, point: tuple[float, float], button: str = "left", count: int = 1) -> None:
        pressed = {"button": button, "clickCount": count}
        self._page.run(
            _mouse("mouseMoved", point),
            *(_mouse(event, point, **pressed) for event in ("mousePressed", "mouseReleased")),
        )

    def _scrolled(self, point: tuple[float, float], direction: str | None) -> str | None:
        delta = SCROLLS.get((direction or "").strip().lower())
        if delta is None:
            return f"scroll needs a direction of {', '.join(SCROLLS)}"
        self._page.run(_mouse("mouseWheel", point, deltaX=delta[0], deltaY=delta[1]))
        self._page.call(TWO_FRAMES)
        return None

    def _dragged(self, start: tuple[float, float], end: tuple[float, float] | None) -> str | None:
        if end is None:
            return "drag needs an end, as in drag(start_point=[10, 60], end_point=[80, 60])"
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        self._page.run(
            _mouse("mouseMoved", start),
            _mouse("mousePressed", start, button="left", clickCount=1),
            # pages begin a drag with the first movement
            *(_mouse("mouseMoved", point, button="left", buttons=1) for point in (middle, end)),
            _mouse("mouseReleased", end, button="left", clickCount=1),
        )
        return None


def _mouse(event: str, point: tuple[float, float], **details: Any) -> BrowserCommand:
    x, y = point
    return BrowserCommand("Input.dispatchMouseEvent", {"type": event, "x": x, "y": y, **details})


def _is_on_page(point: Sequence[float] | None) -> bool:
    x, y = point or (-1.0, -1.0)
    return 0 <= x < WIDTH and 0 <= y < HEIGHT
