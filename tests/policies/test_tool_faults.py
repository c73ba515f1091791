"""Tools that fail in every way: the model reads an error, and the conversation and the others continue."""

from __future__ import annotations

import _thread
import json
import threading
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from mmgrpo.policies.language.environment_pool import EnvironmentPool
from PIL import Image

from mmgrpo.environment import Turn
from mmgrpo.runs.sample_files import sample_metrics, sample_stats
from mmgrpo.tools import MAX_CALLS, ToolEnvironment
from mmgrpo.types import Prompt, Sample
from tests.test_prompt_paths import bomb as bomb_png
from tests.test_tools import call

release = threading.Event()


def hang() -> str:
    """Waits."""
    release.wait(60)
    return "late"


def leave() -> str:
    """Ends the process."""
    raise SystemExit(3)


def end_thread() -> str:
    """Ends its thread."""
    _thread.exit()


def interrupt() -> str:
    """Raises an error of the keyboard."""
    raise KeyboardInterrupt


async def leave_later() -> str:
    """Ends the process from a coroutine."""
    raise SystemExit(4)


def flood() -> str:
    """Returns 100 MB."""
    return "a" * 10**8


def bomb() -> Any:
    """Returns a huge image."""
    return Image.open(BytesIO(bomb_png(9_000)))


def large() -> Any:
    """Returns a large image."""
    return Image.new("L", (4096, 2048))


def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: a number.
        b: a number.
    """
    return a + b


FUNCTIONS: list[Callable[..., Any]] = [hang, leave, end_thread, interrupt, leave_later, flood, bomb, large, add]


def answered(*texts: str, timeout_s: float = 60.0) -> list[Turn]:
    """The answers to two turns of each row: the text, then a call of ``add``."""
    with EnvironmentPool(lambda: ToolEnvironment(FUNCTIONS), len(texts), workers=2, timeout_s=timeout_s) as pool:
        pool.reset([Prompt("a")] * len(texts))
        for row, text in enumerate(texts):
            pool.submit(row, text)
        first = [pool.reply(row) for row in range(len(texts))]
        for row in range(len(texts)):
            pool.submit(row, call("add", a=1, b=row))
        assert [pool.reply(row).text for row in range(len(texts))] == [str(1 + row) for row in range(len(texts))]
        assert [environment.error for environment in pool.environments] == [None] * len(texts)
    return first


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("leave", "SystemExit: 3"),
        ("end_thread", "SystemExit: "),
        ("interrupt", "KeyboardInterrupt: "),
        ("leave_later", "SystemExit: 4"),
        ("bomb", "ValueError: the image of 9000 x 9000 pixels is too large"),
    ],
)
def test_a_tool_that_fails_is_an_error_that_the_model_reads(name: str, error: str) -> None:
    turns = answered(call(name) + call("add", a=1, b=1), call("add", a=2, b=2))
    assert [json.loads(result.text) for result in turns[0].results] in ([{"error": error}, 2], [2, {"error": error}])
    assert turns[1].text == "4"


def test_a_tool_that_hangs_costs_its_call() -> None:
    turns = answered(call("add", a=1, b=1) + call("hang") + call("add", a=3, b=3), call("add", a=2, b=2), timeout_s=0.5)
    release.set()
    texts = [result.text for result in turns[0].results]
    error = json.dumps({"error": "TimeoutError: it took longer than 0.5 s"})
    assert texts == ["2", error, error]
    assert [result.failed for result in turns[0].results] == [False, True, True]
    assert turns[1].text == "4"


def test_calls_that_finish_as_their_time_is_over_keep_their_results() -> None:
    tools = ToolEnvironment([add])
    turn = tools.step(call("add", a=1, b=2))
    assert tools.interrupted(TimeoutError("late")) == turn
    assert tools.step("It is 3.").done
    assert tools.interrupted(TimeoutError("late")) is None


def test_results_are_bounded_with_a_note() -> None:
    (turn,) = answered(call("flood") + call("large"))
    text, note, image_note = turn.text.split("\n")
    assert (text, note) == ("a" * 16_384, "[99983616 characters are cut off]")
    assert image_note == "[the image of 4096 x 2048 pixels is reduced to 2896 x 1448]"
    assert [image.size for image in turn.images] == [(2896, 1448)]
    many = answered(call("add", a=1, b=1) * (MAX_CALLS + 1))[0].results
    assert [result.failed for result in many] == [False] * MAX_CALLS + [True]
    assert "a turn may have 16 calls, this one has 17" in many[-1].text


class Flaky:
    """Raises twice an error of a connection, then answers."""

    def __init__(self) -> None:
        self.num_calls = 0

    def fetch(self, url: str) -> str:
        """Fetches.

        Args:
            url: an address.
        """
        self.num_calls += 1
        if self.num_calls < 3:
            raise ConnectionError("reset by peer")
        return url

    async def fetch_later(self, url: str) -> str:
        """Fetches.

        Args:
            url: an address.
        """
        return self.fetch(url)


@pytest.mark.parametrize("name", ["fetch", "fetch_later"])
def test_calls_are_repeated_after_errors_of_a_connection(name: str) -> None:
    texts = [
        ToolEnvironment([getattr(Flaky(), name)], retries=retries).step(call(name, url="x")).text for retries in (1, 2)
    ]
    assert texts == [json.dumps({"error": "ConnectionError: reset by peer"}), "x"]


def test_calls_of_each_tool_are_counted() -> None:
    tools = ToolEnvironment([add])
    turns = [
        tools.step(call("add", a=1, b=1) + call("add", a=1)),
        tools.step(call("subtract", a=1) + "<tool_call>x</tool_call>"),
    ]
    prompt = Prompt("?")
    samples = [
        Sample(prompt, 0, 0, text="a", turn_texts=["a", "b"], turn_replies=turns),
        Sample(prompt, 0, 1, text="b"),
    ]
    stats = sample_stats(samples)
    metrics = sample_metrics([stats, stats], scores=None)  # type: ignore[arg-type]  # read for token rows alone
    counts = {name: value for name, value in metrics.items() if name.startswith("tools/")}
    assert counts == {
        "tools/add/calls": 4.0,
        "tools/add/failures": 2.0,
        "tools/unreadable/calls": 4.0,
        "tools/unreadable/failures": 4.0,
    }
    assert metrics["time/tools/add_s"] == 2 * sum(result.seconds for result in turns[0].results)
