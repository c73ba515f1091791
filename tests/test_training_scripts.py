"""Functions of scripts that train when they are imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mmgrpo.errors import ConfigError, MissingPackageError
from mmgrpo.system.targets import import_python_target
from mmgrpo.system.training_scripts import training_line
from mmgrpo.trl.conversion import converted

REWARD = "def length(completions, **columns):\n    return [1.0]\n"
MAIN = "if __name__ == '__main__':\n    "


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("trainer = GRPOTrainer()\ntrainer.train()", 2),
        ("GRPOTrainer('m').train()", 1),
        ("def main():\n    trainer.train()\nmain()", 3),
        ("with context():\n    result = trainer.train()", 2),
        (f"{MAIN}trainer.train()", None),
        (f"def main():\n    trainer.train()\n{MAIN}main()", None),
        ("model.train()", None),
        ("class Run:\n    def start(self):\n        self.trainer.train()", None),
        ("def (", None),
    ],
)
def test_line_that_trains_on_import(text: str, line: int | None) -> None:
    assert training_line(text) == line


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    return write


def test_function_of_a_script_that_trains_is_an_error(module: Callable[[str, str], None]) -> None:
    module(
        "script_that_trains", f"import no_such_library\n{REWARD}trainer = no_such_library.Trainer()\ntrainer.train()"
    )
    message = (
        r"script_that_trains\.py trains when it is imported \(line 5\): move length to a separate module, such as "
        r"script_that_trains_functions\.py"
    )
    with pytest.raises(ConfigError, match=message):
        import_python_target("python:script_that_trains:length")
    assert "script_that_trains" not in sys.modules


def test_missing_package_of_a_script_may_be_avoided(module: Callable[[str, str], None]) -> None:
    module("script_with_main", f"import no_such_library\n{REWARD}{MAIN}trainer.train()")
    with pytest.raises(
        MissingPackageError, match=r"pip install no_such_library, .*; or move length to a module without that import"
    ):
        import_python_target("python:script_with_main:length")


def test_function_of_a_script_with_a_main_part_is_imported(module: Callable[[str, str], None]) -> None:
    module("script_of_functions", f"{REWARD}{MAIN}trainer.train()")
    assert import_python_target("python:script_of_functions:length")(["a"]) == [1.0]


def test_converted_script_that_trains_has_a_comment(module: Callable[[str, str], None]) -> None:
    call = "trainer = GRPOTrainer('m', [length], args=GRPOConfig(max_steps=1))\n"
    module("t", f"{REWARD}{call}trainer.train()")
    comment = (
        "# * rewards: t.py trains when it is imported (line 4): move length to t_functions.py, and name it "
        "python:t_functions:FUNCTION\n"
    )
    assert comment in converted(Path("t.py"))
    module("t", f"{REWARD}{call}{MAIN}trainer.train()")
    assert "trains when" not in converted(Path("t.py"))
