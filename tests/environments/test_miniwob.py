"""Real pages of MiniWoB++: what is clicked is rewarded by the page, and each conversation has its tab."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest

from mmgrpo.environment import Environment
from mmgrpo.environments.miniwob_pages import HEIGHT, WIDTH, MiniwobEnvironment
from mmgrpo.errors import ConfigError, DataError, MissingPackageError
from mmgrpo.types import Prompt

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


def test_a_missing_browser_and_unknown_tasks_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no task 'fly'; it has .*click-button"):
        MiniwobEnvironment("fly")
    monkeypatch.setattr("mmgrpo.environments.miniwob_pages._browsers", [])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingPackageError, match="apt-get install chromium chromium-driver"):
        MiniwobEnvironment("click-button")


@needs_browser
@pytest.mark.slow
def test_rows_without_a_seed_are_errors() -> None:
    with pytest.raises(DataError, match="integer in the column 'seed'"):
        MiniwobEnvironment("click-button").reset(Prompt("?"))
