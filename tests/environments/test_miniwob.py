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
from mmgrpo.environments.miniwob_pages import HEIGHT, WIDTH, MiniwobEnvironment
from mmgrpo.errors import ConfigError, DataError, MissingPackageError, ProcessLostError
from mmgrpo.types import Prompt
from tests.test_process_guard import wait_until_ended

pytest.importorskip("miniwob")
pytest.importorskip("selenium")

needs_browser = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs chromium and chromium-driver"
)

BUTTONS = "return [...document.querySelectorAll('button')].map(b => [b.innerText, b.getBoundingClientRect().toJSON()])"


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
    boxes = dict(environment._browser.script(str(environment._tab), BUTTONS))
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
    where = "const r = document.querySelector('input').getBoundingClientRect(); return [r.x + 9, r.y + 9]"
    x, y = form._browser.script(str(form._tab), where)
    form.step(f"click({x}, {y})")
    form.step(f"type(content='{name}')")
    assert form.step("click({}, {})".format(*center(form, "Submit"))).reward == 1.0


@needs_browser
@pytest.mark.slow
def test_boxes_are_dragged_and_lists_are_scrolled(opened: list[Environment]) -> None:
    page, _ = started(opened, 6, "drag-box")
    corner = "const r = document.querySelector(arguments[0]).getBoundingClientRect(); return [r.x, r.y]"
    (x, y), (left, top) = (
        page._browser.script(str(page._tab), corner, f"#draggable{size}") for size in ("Small", "Large")
    )
    turn = page.step(f"drag(start_point=[{x + 5}, {y + 5}], end_point=[{left + 20}, {top + 20}])")
    assert (turn.text, turn.done) == ("", False)
    moved = page._browser.script(str(page._tab), corner, "#draggableSmall")
    assert moved == pytest.approx([left + 15, top + 15], abs=1)
    assert page.step("click({}, {})".format(*center(page, "Submit"))).reward == 1.0
    names, _ = started(opened, 1, "click-scroll-list")
    room, x, y = names._browser.script(
        str(names._tab),
        "const s = document.getElementById('options'), r = s.getBoundingClientRect();"
        "return [s.scrollHeight - s.clientHeight, r.x + 20, r.y + 20]",
    )
    position = "return document.getElementById('options').scrollTop"
    assert names.step(f"scroll(x={x}, y={y}, direction='DOWN')").text == ""
    assert names._browser.script(str(names._tab), position) == pytest.approx(min(100, room), abs=1)
    names.step(f"scroll(x={x}, y={y}, direction='up')")
    assert names._browser.script(str(names._tab), position) == 0


@needs_browser
@pytest.mark.slow
def test_incomplete_drags_and_scrolls_are_answered(opened: list[Environment]) -> None:
    page, _ = started(opened, 6, "drag-box")
    assert page.step("drag(x=1, y=1)").text.startswith("Error: drag needs an end")
    assert page.step("drag(start_point=[1, 1], end_point=[1, 900])").text.startswith("Error: drag needs an end from")
    assert page.step("scroll(x=1, y=1)").text == "Error: scroll needs a direction of up, down, left, right"


HOLDER = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from mmgrpo.environments.miniwob_pages import MiniwobEnvironment
from mmgrpo.types import Prompt

with ThreadPoolExecutor(1) as pool:  # environments run on threads that end
    environment = pool.submit(MiniwobEnvironment, "click-button").result()
    pool.submit(environment.reset, Prompt("?", columns={"seed": 1})).result()
print(environment._browser._process.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


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
    assert len(pids) > 4  # the guard, the driver, the browser and its renderers
    if number is not None:
        holder.send_signal(number)
    holder.wait(60)
    assert wait_until_ended(pids) == []


def test_a_missing_browser_and_unknown_tasks_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no task 'fly'; it has .*click-button"):
        MiniwobEnvironment("fly")
    monkeypatch.setattr("mmgrpo.environments.miniwob_pages._browsers", [])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingPackageError, match="apt-get install chromium chromium-driver"):
        MiniwobEnvironment("click-button")


def test_no_driver_is_left_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("chromium", "chromedriver"):
        (tmp_path / name).write_text("#!/bin/sh\nsleep 1000\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr("mmgrpo.environments.miniwob_pages._browsers", [])
    monkeypatch.setattr("mmgrpo.environments.miniwob_pages.START_S", 0.5)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    others = descendants(os.getpid())
    with pytest.raises(ProcessLostError, match=r"chromedriver does not start within 0\.5 s"):
        MiniwobEnvironment("click-button")
    assert set(descendants(os.getpid())) <= set(others)


@needs_browser
@pytest.mark.slow
def test_rows_without_a_seed_are_errors() -> None:
    with pytest.raises(DataError, match="integer in the column 'seed'"):
        MiniwobEnvironment("click-button").reset(Prompt("?"))
