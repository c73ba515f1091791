"""Environments that fail: their sample is not scored and counted, the others are as if it had not happened."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, final

import pytest
import torch
from mmgrpo.policies.language import guarded_environment
from mmgrpo.policies.language.environment_pool import EnvironmentPool
from mmgrpo.policies.language.guarded_environment import MAX_CHARACTERS, GuardedEnvironment
from PIL import Image

from mmgrpo.environment import Environment, Turn
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.samples import ToolResult
from mmgrpo.tools import ToolEnvironment
from mmgrpo.types import Prompt
from tests.test_trainer_exchanges import Asks, trainer_of


@final
class Faulty(Environment):
    """Asks back once, or does what ``fault`` does in ``method``."""

    def __init__(self, method: str, fault: Callable[[], Any]) -> None:
        self._method, self._fault = method, fault

    def reset(self, prompt: Prompt) -> Turn:
        return self._fault() if self._method == "reset" else Turn()

    def step(self, text: str) -> Turn:
        return self._fault() if self._method == "step" else Turn(text="two red", reward=1.0)


def raises() -> Any:
    raise ValueError("no answer")


def ends() -> Any:
    raise SystemExit(3)


def cancels() -> Any:
    raise asyncio.CancelledError


class OddError(BaseException):
    """An error that is no ``Exception``, as the panics of libraries in Rust."""


def panics() -> Any:
    raise OddError("lost")


def interrupts() -> Any:
    raise KeyboardInterrupt


class UnwritableError(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError


def raises_unwritable() -> Any:
    raise UnwritableError


def raises_surrogate() -> Any:
    raise ValueError("a\ud800")


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (raises, "raised ValueError: no answer"),
    "exits": (ends, "raised SystemExit: 3"),
    "is cancelled": (cancels, "raised CancelledError"),
    "panics": (panics, "raised OddError: lost"),
    "raises without a text": (raises_unwritable, "raised UnwritableError: its text cannot be made"),
    "raises a surrogate": (raises_surrogate, "raised ValueError: a?"),
    "reward beyond float32": (lambda: Turn(text="x", reward=1e300), "Turn.reward must be finite (in float32)"),
    "images of None": (lambda: Turn(text="x", images=None), "Turn.images must be a list, got NoneType"),  # type: ignore[arg-type]
    "returns None": (lambda: None, "it returned NoneType and must return mmgrpo.environment.Turn"),
    "returns bytes": (lambda: b"x", "it returned bytes and must"),
    "text of bytes": (lambda: Turn(text=b"x"), "Turn.text and Turn.role must be str, got bytes"),  # type: ignore[arg-type]
    "reward of NaN": (
        lambda: Turn(text="x", reward=float("nan")),
        "Turn.reward must be finite (in float32) or None, got nan",
    ),
    "an image without pixels": (
        lambda: Turn(text="x", images=[Image.new("RGB", (0, 5))]),
        "an image of Turn.images has no pixels: 0 x 5",
    ),
    "negative images of a result": (
        lambda: Turn(results=[ToolResult("a", "x", num_images=-1), ToolResult("b", "x", num_images=1)]),
        "Turn.results must have as many images as Turn.images",
    ),
    "tools of numbers": (lambda: Turn(tools=[1]), "Turn.tools "),  # type: ignore[list-item]
    "reward of text": (lambda: Turn(text="x", reward="x"), "raised ValueError: could not convert"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("fault", "error"), FAULTS.values(), ids=FAULTS)
def test_a_fault_ends_the_exchange(fault: Callable[[], Any], error: str) -> None:
    for method in ("reset", "step"):
        environment = GuardedEnvironment(lambda method=method: Faulty(method, fault))
        assert environment.reset(Prompt("a")) == Turn()
        assert environment.step("x") == Turn(done=True)
        assert error in (environment.error or "")
        assert f"Faulty.{method} raised" in (environment.error or "")


def test_tools_of_a_later_turn_are_a_fault() -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    environment = GuardedEnvironment(lambda: Faulty("step", lambda: Turn(text="x", tools=tools)))
    assert environment.reset(Prompt("a")) == Turn()
    assert environment.step("x") == Turn(done=True)
    assert "Turn.tools belongs to the turn of reset" in (environment.error or "")


def test_an_interrupt_of_the_user_is_raised_and_one_of_an_environment_is_a_fault() -> None:
    with pytest.raises(KeyboardInterrupt):
        GuardedEnvironment(lambda: Faulty("step", interrupts)).step("x")
    with EnvironmentPool(lambda: Faulty("step", interrupts), 1, workers=1, timeout_s=None) as pool:
        pool.reset([Prompt("a")])
        pool.submit(0, "x")
        assert pool.reply(0) == Turn(done=True)
    assert pool.environments[0].error == "Faulty.step raised KeyboardInterrupt: "


def test_an_environment_that_cannot_be_made_is_a_fault() -> None:
    environment = GuardedEnvironment(raises)
    assert (environment.reset(Prompt("a")), environment.step("x")) == (Turn(), Turn(done=True))
    assert environment.error == "the environment.__init__ raised ValueError: no answer"


def test_an_opening_that_ends_the_exchange_is_a_fault() -> None:
    environment = GuardedEnvironment(lambda: Faulty("reset", lambda: Turn(text="x", done=True)))
    assert (environment.reset(Prompt("a")), environment.step("x")) == (Turn(), Turn(done=True))
    assert "it ended the conversation before the policy wrote a turn" in (environment.error or "")


def test_invalid_environments_raise() -> None:
    environment = GuardedEnvironment(lambda: None)  # type: ignore[arg-type,return-value]
    assert (environment.reset(Prompt("a")), environment.step("x")) == (Turn(), Turn(done=True))
    assert "NoneType is no mmgrpo.environment.Environment" in (environment.error or "")


@final
class Takes(Environment):
    """Takes the answer out of the row that it is given, and changes settings of the process."""

    def reset(self, prompt: Prompt) -> Turn:
        del prompt.columns["answer"]  # type: ignore[attr-defined]
        return Turn()

    def step(self, text: str) -> Turn:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        return Turn(text="x")


def test_an_environment_changes_neither_the_row_nor_settings(caplog: pytest.LogCaptureFixture) -> None:
    prompt = Prompt("a", columns={"answer": "4"})
    environment = GuardedEnvironment(Takes)
    assert environment.reset(prompt) == Turn()
    assert environment.step("x").text == "x"
    assert prompt.columns == {"answer": "4"}
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (True, torch.float32)
    assert "environment 'Takes' changed grad mode from True to False; it is restored" in caplog.text


def test_texts_are_turns_and_are_bounded() -> None:
    environment = GuardedEnvironment(lambda: Faulty("step", lambda: "hello"))
    assert environment.step("x") == Turn(text="hello")
    environment = GuardedEnvironment(lambda: Faulty("step", lambda: Turn(text="lone \ud800 surrogate")))
    assert environment.step("x").text == "lone ? surrogate"
    environment = GuardedEnvironment(lambda: Faulty("step", lambda: Turn(text="a" * 10**8)))
    text = environment.step("x").text
    assert text == "a" * MAX_CHARACTERS + f"\n[{10**8 - MAX_CHARACTERS} characters are cut off]"


made = count()


def sometimes() -> Environment:
    """The third environment that is made fails in its first step."""
    return Faulty("step", raises) if next(made) == 3 else Asks("two red")


def opens_at_length() -> Environment:
    """The third environment that is made begins with more than the model's context."""
    return Faulty("reset", lambda: "red " * 10_000) if next(made) == 3 else Asks("two red")


def cannot_be_made_again() -> Environment:
    """The third environment cannot be made."""
    if next(made) == 3:
        raise ConnectionError("no server")
    return Asks("two red")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["opens_at_length", "cannot_be_made_again"])
def test_a_run_continues_where_one_exchange_cannot_begin(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = count()
    monkeypatch.setattr(f"{__name__}.made", numbers)
    settings = {"name": f"python:{__name__}:{name}"}
    folder = trainer_of(tmp_path, {"environment": settings, "max_turns": 2}).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["environment/failed_frac"] for line in lines) == 1 / 8
    assert next(numbers) == 1 + 2 * 8  # one before the run, then one per row of two steps


def opens_always_at_length() -> Environment:
    return Faulty("reset", lambda: "red " * 10_000)


def test_environments_that_all_begin_at_length_are_an_error(tmp_path: Path) -> None:
    settings = {"name": f"python:{__name__}:opens_always_at_length"}
    with pytest.raises(DataError, match="more than the model's context"):
        trainer_of(tmp_path, {"environment": settings, "max_turns": 2}).train()


def test_an_environment_that_can_never_be_made_is_an_error(tmp_path: Path) -> None:
    settings = {"name": f"python:{__name__}:raises"}
    with pytest.raises(ConfigError, match="cannot be made: ValueError: no answer"):
        trainer_of(tmp_path, {"environment": settings, "max_turns": 2})


def test_a_step_with_only_failed_conversations_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer_of(tmp_path, {"environment": {"name": f"python:{__name__}:always"}, "max_turns": 2}).train()
    assert "the environments of all 8 episodes of this step failed: nothing is trained" in caplog.text


def always() -> Environment:
    return Faulty("step", raises)


@pytest.mark.nightly
def test_a_run_continues_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{__name__}.made", count())
    monkeypatch.setattr(guarded_environment, "_names_with_traceback", set())
    settings = {"name": f"python:{__name__}:sometimes"}
    trainer = trainer_of(tmp_path, {"environment": settings, "max_turns": 2})
    folder = trainer.train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert [line["environment/failed_frac"] for line in lines] == [1 / 8, 0.0]
    assert [line["reward/judged/applies_frac"] for line in lines] == [7 / 8, 1.0]
    assert "Faulty.step raised ValueError: no answer; its sample is not scored" in caplog.text
    rows = [
        json.loads(row)
        for path in folder.rglob("*.jsonl")
        if "samples" in path.parts
        for row in path.read_text().splitlines()
    ]
    assert sum(row.get("environment_error") == "Faulty.step raised ValueError: no answer" for row in rows) == 1


def picture(color: str) -> Any:
    """An image.

    Args:
        color: of it.
    """
    return {"image": Image.new("RGB", (2, 2), color)}


def opaque(color: str) -> Any:
    """An object.

    Args:
        color: of it.
    """
    return object()


def test_an_image_of_a_tool_is_an_image_of_the_turn() -> None:
    call = '<tool_call>{"name": "picture", "arguments": {"color": "red"}}</tool_call>'
    environment = GuardedEnvironment(lambda: ToolEnvironment([picture]))
    turn = environment.step(call)
    assert [image.getpixel((0, 0)) for image in turn.images] == [(255, 0, 0)]
    assert (json.loads(turn.text), turn.role) == ({"image": "(image)"}, "tool")


def test_values_beyond_json_are_returned_as_an_error_text() -> None:
    call = '<tool_call>{"name": "opaque", "arguments": {"color": "red"}}</tool_call>'
    text = ToolEnvironment([opaque]).step(call).text
    assert json.loads(text) == {
        "error": "TypeError: a tool must return a text or a JSON value; this one returned object"
    }


@pytest.mark.nightly
def test_images_are_loaded_and_bounded(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.new("RGB", (4, 3), "red").save(file)
    environment = GuardedEnvironment(lambda: Faulty("step", lambda: Turn(images=[str(file)])))
    assert [image.getpixel((0, 0)) for image in environment.step("x").images] == [(255, 0, 0)]
    file.write_bytes(b"no image")
    assert (environment.step("x"), "a.png" in (environment.error or "")) == (Turn(done=True), True)
    many = GuardedEnvironment(lambda: Faulty("step", lambda: Turn(images=[Image.new("RGB", (1, 1))] * 65)))
    assert many.step("x") == Turn(done=True)
    assert "Turn.images must be at most 64, got 65" in (many.error or "")
    large = GuardedEnvironment(lambda: Faulty("step", lambda: Turn(images=[Image.new("L", (2**14, 2**13))])))
    assert large.step("x") == Turn(done=True)
    assert "an image of Turn.images has (16384, 8192) pixels; at most 67108864 are allowed" in (large.error or "")
