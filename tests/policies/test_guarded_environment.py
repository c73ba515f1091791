"""Environments that fail: their sample is not scored and counted, the others are as if it had not happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, final

import pytest
from PIL import Image

from mmgrpo.environment import Environment, Turn
from mmgrpo.errors import ConfigError
from mmgrpo.policies.language import guarded_environment
from mmgrpo.policies.language.guarded_environment import MAX_CHARACTERS, GuardedEnvironment
from mmgrpo.tools import ToolEnvironment, calls_in
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


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (raises, "raised ValueError: no answer"),
    "exits": (ends, "raised SystemExit: 3"),
    "returns None": (lambda: None, "it returned NoneType and must return mmgrpo.environment.Turn"),
    "returns bytes": (lambda: b"x", "it returned bytes and must"),
    "text of bytes": (lambda: Turn(text=b"x"), "Turn.text and Turn.role must be str, got bytes"),  # type: ignore[arg-type]
    "reward of NaN": (lambda: Turn(text="x", reward=float("nan")), "Turn.reward must be finite or None, got nan"),
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


def test_an_environment_that_cannot_be_made_is_a_fault() -> None:
    environment = GuardedEnvironment(raises)
    assert (environment.reset(Prompt("a")), environment.step("x")) == (Turn(), Turn(done=True))
    assert environment.error == "the environment.__init__ raised ValueError: no answer"


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


def test_a_run_continues_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{__name__}.made", count())
    monkeypatch.setattr(guarded_environment, "_traceback_shown", set())
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
    """A picture.

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


def test_a_tool_that_returns_an_image_is_an_error_of_the_run() -> None:
    call = '<tool_call>{"name": "picture", "arguments": {"color": "red"}}</tool_call>'
    environment = GuardedEnvironment(lambda: ToolEnvironment([picture]))
    with pytest.raises(ConfigError, match="the tool picture returned an image; tools return text"):
        environment.step(call)


def test_what_json_cannot_hold_is_told_as_an_error() -> None:
    call = '<tool_call>{"name": "opaque", "arguments": {"color": "red"}}</tool_call>'
    told = ToolEnvironment([opaque]).step(call).text
    assert json.loads(told) == {
        "error": "TypeError: a tool returns text or what JSON can hold, and this one returned object"
    }


def test_calls_are_found_in_linear_time() -> None:
    assert calls_in("<tool_call> a </tool_call> x <tool_call>b</tool_call> <tool_call> c") == ["a", "b"]
    assert calls_in("</tool_call><tool_call>a") == []
    assert calls_in("<tool_call>" * 200_000 + " " * 200_000) == []
