"""Memory that runs out: the error names the phase of the step and the setting to lower, and no written file is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmgrpo.errors import OutOfMemoryError
from mmgrpo.runs.checkpoint import checkpoint_steps
from mmgrpo.system.out_of_memory import is_out_of_memory
from mmgrpo.training.run_loop import naming_phase
from tests.faults.disturbed import on_forward
from tests.faults.runs import CASES, Case
from tests.policies.families import daily


def too_much() -> torch.Tensor:
    return torch.empty(2**50)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
        (OSError("Cannot allocate memory"), False),
    ],
)
def test_out_of_memory_messages_of_libraries_are_recognized(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_out_of_memory_errors_of_the_system_are_recognized() -> None:
    with pytest.raises(RuntimeError) as raised:
        too_much()
    assert is_out_of_memory(raised.value)


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), naming_phase("the rollout", 1):
        raise ZeroDivisionError


@pytest.mark.nightly
def test_memory_is_freed_after_an_error() -> None:
    allocations: list[list[int]] = []

    def holds() -> None:
        large = list(range(1000))
        allocations.append(large)
        del large[0]
        raise MemoryError

    with pytest.raises(OutOfMemoryError) as raised, naming_phase("the update", 3):
        holds()
    cause = raised.value.__cause__
    assert cause is not None
    frames, trace = [], cause.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    inner = next(frame for frame in frames if frame.f_code.co_name == "holds")
    assert "large" not in inner.f_locals


def forwards(case: Case, output: Path) -> list[str]:
    """The phase of each forward of an undisturbed run: draws are without gradient, updates are with."""
    result: list[str] = []
    trainer = case.make(output, None, case.reward)
    case.module(trainer.policy).register_forward_pre_hook(
        lambda *_: result.append(f"{trainer.step} {torch.is_grad_enabled()}")
    )
    trainer.train()
    return result


HINTS = {"the rollout": "lower policy.rollout_batch", "the update": "lower policy.update_batch"}


@pytest.mark.nightly
@pytest.mark.parametrize("phase", daily(HINTS, "the rollout"))  # tests/test_resuming.py has the other one daily
@pytest.mark.parametrize("name", daily(CASES, "language"))
def test_the_phase_is_named_and_the_last_complete_step_saved(name: str, phase: str, tmp_path: Path) -> None:
    case = CASES[name]
    phases = forwards(case, tmp_path / "whole")
    after_first = len(phases) - phases[::-1].index("1 True")
    assert phases[after_first] == "1 False"
    at = {"the rollout": after_first + 1, "the update": phases.index("2 True") + 1}[phase]
    output = tmp_path / phase
    trainer = case.make(output, None, case.reward)
    on_forward(case, trainer, at, too_much, ever_after=True)  # an update would be taken in halved slices otherwise
    with pytest.raises(OutOfMemoryError, match=f"out of memory in {phase} at step 2: {HINTS[phase]}"):
        trainer.train()
    assert checkpoint_steps(output / "run") == [1]
    resumed = case.make(output, output / "run", case.reward)
    resumed.train()
    assert checkpoint_steps(output / "run") == [2, 3]
