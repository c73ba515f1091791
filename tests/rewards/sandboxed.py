"""Programs in the sandbox, where this machine supports it; elsewhere these tests are skipped."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.errors import RewardError
from mmgrpo.system.sandbox import PYTHON, Outcome, Program, SandboxLimits, run


def refused() -> str:
    try:
        run(Program(command=("/bin/true",)))
    except RewardError as error:
        return str(error)
    return ""


needs_sandbox = pytest.mark.skipif(bool(REASON := refused()), reason=REASON)


def ran(code: str, stdin: str = "", **limits: Any) -> Outcome:
    """How a Python program ends."""
    program = Program(command=(*PYTHON, "main.py"), files={"main.py": code}, limits=SandboxLimits(**limits))
    return run(program, stdin)
