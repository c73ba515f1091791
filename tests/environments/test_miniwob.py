"""Real pages of MiniWoB++: the page rewards clicks, and each conversation has its tab."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmgrpo.environment import Environment
from mmgrpo.environments.browser import Browser
from mmgrpo.environments.miniwob_pages import HEIGHT, REPEATABLE, WIDTH, MiniwobEnvironment
from mmgrpo.errors import ConfigError, DataError, MissingPackageError, ProcessLostError
from mmgrpo.types import Prompt
from tests.test_process_guard import wait_until_ended

pytest.importorskip("miniwob")

needs_browser = pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")

BUTTONS = "() => [...document.querySelectorAll('button')].map(b => [b.innerText, b.getBoundingClientRect().toJSON()])"
CORNER = "selector => { const r = document.querySelector(selector).getBoundingClientRect(); return [r.x, r.y]; }"
OPTIONS = "document.getElementById('options')"


@pytest.fixture
def opened() -> Iterator[list[Environment]]:
    environments: list[Environment] = []
    yield environments
    for environment in environments:
        environment.close()


def started(opened: list[Environment], seed: int, task: str = "click-button") -> tuple[MiniwobEnvironment, str]:
    environment = MiniwobEnvironment(task)
    opened.append(environment)
    turn = environment.reset(Prompt("Do it.", columns={"seed": seed}))
    assert turn.images[0].size == (WIDTH, HEIGHT)
    return environment, turn.text


def center(environment: MiniwobEnvironment, name: str) -> tuple[float, float]:
    """The middle of a button, from the page."""
    boxes = dict(environment._page.call(BUTTONS))
    box = boxes[name]
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@needs_browser
@pytest.mark.slow
def test_pages_reward_clicks_of_interleaved_conversations(opened: list[Environment]) -> None:
    pages = [started(opened, seed) for seed in (1, 2)]
    for environment, _ in pages:
        missed = environment.step("click(x=159, y=209)")
        assert (missed.done, missed.reward, len(missed.images)) == (False, 0.0, 1)
    for environment, instruction in reversed(pages):
        (name,) = re.findall(r'Click on the "(.*)" button', instruction)
        x, y = center(environment, name)
        turn = environment.step(f'{{"action": "click", "coordinate": [{x}, {y}]}}')
        assert (turn.done, turn.reward) == (True, 1.0)


@needs_browser
@pytest.mark.slow
def test_seeds_determine_pages_and_wrong_clicks_lose(opened: list[Environment]) -> None:
    (first, text), (second, same), (_, other) = (started(opened, seed) for seed in (1, 1, 3))
    assert text == same
    assert first._screenshot().tobytes() == second._screenshot().tobytes()
    assert text != other
    test, _ = started(opened, 4, "click-test-2")
    x, y = center(test, "TWO")
    assert test.step(f"click({x}, {y})").reward == -1.0


@needs_browser
@pytest.mark.slow
def test_texts_are_typed_and_invalid_actions_are_answered(opened: list[Environment]) -> None:
    form, instruction = started(opened, 5, "enter-text")
    (name,) = re.findall(r'Enter "(.*)" into', instruction)
    assert form.step("I do nothing.").text == "Error: 0 actions, where one is required"
    assert form.step("click(x=500, y=1)").text.startswith("Error: click needs a position from (0, 0) to (159, 209)")
    assert form.step("fly(x=1, y=1)").text.startswith("Error: there is no action 'fly'")
    x, y = form._page.call(CORNER, "input")
    form.step(f"click({x + 9}, {y + 9})")
    form.step(f"type(content='{name}')")
    assert form.step("click({}, {})".format(*center(form, "Submit"))).reward == 1.0


@needs_browser
@pytest.mark.slow
def test_boxes_are_dragged_and_lists_are_scrolled(opened: list[Environment]) -> None:
    page, _ = started(opened, 6, "drag-box")
    (x, y), (left, top) = (page._page.call(CORNER, f"#draggable{size}") for size in ("Small", "Large"))
    turn = page.step(f"drag(start_point=[{x + 5}, {y + 5}], end_point=[{left + 20}, {top + 20}])")
    assert (turn.text, turn.done) == ("", False)
    moved = page._page.call(CORNER, "#draggableSmall")
    assert moved == pytest.approx([left + 15, top + 15], abs=1)
    assert page.step("click({}, {})".format(*center(page, "Submit"))).reward == 1.0
    names, _ = started(opened, 1, "click-scroll-list")
    x, y = names._page.call(CORNER, "#options")
    height, position = (
        names._page.call(f"() => {OPTIONS}.scrollHeight - {OPTIONS}.clientHeight"),
        f"() => {OPTIONS}.scrollTop",
    )
    assert names.step(f"scroll(x={x + 20}, y={y + 20}, direction='DOWN')").text == ""
    assert names._page.call(position) == pytest.approx(min(100, height), abs=1)
    names.step(f"scroll(x={x + 20}, y={y + 20}, direction='up')")
    assert names._page.call(position) == 0


@needs_browser
@pytest.mark.slow
def test_incomplete_drags_and_scrolls_are_answered(opened: list[Environment]) -> None:
    page, _ = started(opened, 6, "drag-box")
    assert page.step("drag(x=1, y=1)").text.startswith("Error: drag needs an end")
    assert page.step("drag(start_point=[1, 1], end_point=[1, 900])").text.startswith("Error: drag needs an end from")
    assert page.step("scroll(x=1, y=1)").text == "Error: scroll needs a direction of up, down, left, right"


HOLDER = """
import signal, sys, time
from concurrent.futures import ThreadPoolExecutor
from mmgrpo.environments.miniwob_pages import MiniwobEnvironment
from mmgrpo.types import Prompt

signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a shell ignore it
with ThreadPoolExecutor(1) as pool:  # environments run on threads that end
    environment = pool.submit(MiniwobEnvironment, "click-button").result()
    pool.submit(environment.reset, Prompt("?", columns={"seed": 1})).result()
print(environment._tabs._browser.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


def is_browser(pid: int) -> bool:
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return "chromium" in arguments[0] and "--remote-debugging-pipe" in arguments


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = [pid]
    for parent in family:
        family += [child for child, its_parent in parents.items() if its_parent == parent]
    return family


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_browser_is_left_by_an_ended_process(number: signal.Signals | None) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, "2" if number is None else "1000"], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    pids = descendants(int(holder.stdout.readline()))
    assert len(pids) > 3  # the guard, the browser and its renderers
    if number is not None:
        holder.send_signal(number)
    holder.wait(120)
    assert wait_until_ended(pids) == []


ROWS = [  # an instruction with the right element, and one that is wrong, of the page of seed 3
    ("click-button", 'Click on the "Next" button.', '[1] button "Next"', 1.0),
    ("click-tab", "Click on Tab #1.", '[2] a "Tab #2"', -1.0),
    ("click-widget", 'Click on a "button" widget.', '[3] button "l8f0b"', 1.0),
    ("click-dialog-2", 'Click the button in the dialog box labeled "x".', '[1] button "Close"', 1.0),
]


@needs_browser
@pytest.mark.slow
def test_elements_are_listed_and_clicked(opened: list[Environment]) -> None:
    for task, instruction, element, reward in ROWS:
        environment = MiniwobEnvironment(observation=["elements"])
        opened.append(environment)
        turn = environment.reset(Prompt("?", columns={"seed": 3, "task": task}))
        first, *elements = turn.text.splitlines()
        assert (first, len(turn.images)) == (instruction, 0)
        assert element in elements
        assert environment.step("click(element=99)").text.startswith("Error: there is no element 99 among")
        number = elements.index(element) + 1
        final = environment.step(f'{{"action": "click", "element": {number}}}')
        assert (final.done, final.reward) == (True, reward)


@needs_browser
@pytest.mark.slow
def test_values_of_controls_are_listed(opened: list[Environment]) -> None:
    form = MiniwobEnvironment("enter-text", observation=["elements", "screenshot"])
    opened.append(form)
    turn = form.reset(Prompt("?", columns={"seed": 5}))
    (name,) = re.findall(r'Enter "(.*)" into', turn.text)
    assert turn.text.splitlines()[1:] == ["[1] text", '[2] button "Submit"']
    assert turn.images[0].size == (WIDTH, HEIGHT)
    assert form.step(f"type(element=1, content='{name}')").text.splitlines() == [
        f'[1] text = "{name}"',
        '[2] button "Submit"',
    ]
    assert form.step("click(element=2)").reward == 1.0


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(REPEATABLE))
def test_pages_do_not_depend_on_earlier_episodes(task: str, opened: list[Environment]) -> None:
    """The tab is the same one; the clicks of the earlier episodes, at any place of the page, leave nothing."""
    observed = []
    for number in range(24):
        environment = MiniwobEnvironment(task, observation=["elements", "screenshot"])
        turn = environment.reset(Prompt("?", columns={"seed": number % 6}))
        observed.append((turn.text, turn.images[0].tobytes()))
        if number % 5:  # some episodes do not end
            environment.step(f"click({17 * number % WIDTH}, {50 + 23 * number % 150})")
        environment.step(f"click(element={number % 4 + 1})")
        environment.close()
        if number < 6:  # the page of each seed, loaded
            environment._tabs._free[True].clear()
    for number in range(6, 24):
        assert observed[number] == observed[number % 6], number


@needs_browser
@pytest.mark.slow
def test_a_browser_that_ended_is_replaced(opened: list[Environment]) -> None:
    first, text = started(opened, 1)
    os.kill(next(pid for pid in descendants(first._tabs._browser.pid) if is_browser(pid)), signal.SIGKILL)
    first._tabs._browser._reader.join(60)
    with pytest.raises(ProcessLostError, match="the browser has ended"):
        first.step("click(1, 1)")
    opened.clear()
    second, same = started(opened, 1)
    assert (same, second._tabs is first._tabs) == (text, False)


def test_a_missing_browser_and_unknown_tasks_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no task 'fly'; it has .*click-button"):
        MiniwobEnvironment("fly")
    with pytest.raises(ConfigError, match=r"one or more of screenshot, elements, got \['html'\]"):
        MiniwobEnvironment("click-button", observation=["html"])
    monkeypatch.setattr("mmgrpo.environments.miniwob_pages._shared", [])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingPackageError, match="needs Chromium: apt-get install chromium"):
        MiniwobEnvironment("click-button")


@pytest.mark.nightly
def test_no_browser_is_left_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chromium").write_text("#!/bin/sh\necho no display\nsleep 1000\n")
    (tmp_path / "chromium").chmod(0o755)
    monkeypatch.setattr("mmgrpo.environments.browser.START_S", 2.0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    others = descendants(os.getpid())
    with pytest.raises(ProcessLostError, match=r"chromium does not start within 2 s; its output: 'no display"):
        Browser("the test")
    assert set(descendants(os.getpid())) <= set(others)


@needs_browser
@pytest.mark.slow
def test_rows_without_a_seed_are_errors() -> None:
    with pytest.raises(DataError, match="integer in the column 'seed'"):
        MiniwobEnvironment("click-button").reset(Prompt("?"))
    with pytest.raises(DataError, match=r"one in the column 'task' of the row: MiniWoB\+\+ has no task 'fly'"):
        MiniwobEnvironment().reset(Prompt("?", columns={"seed": 1, "task": "fly"}))
