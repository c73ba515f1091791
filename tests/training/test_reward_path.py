"""The functions that a reward number passes through on its way to the loss."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.overrides import TorchFunctionMode

import mmgrpo.training.gradients
from mmgrpo import Trainer, build_policy, load_config, load_prompts_of
from mmgrpo.types import Sample

ROOT = Path(__file__).parents[2]
STEP = tuple(str(ROOT / "mmgrpo" / name) for name in ("loop.py", "training/", "scoring/"))
"""The step; a function of ``mmgrpo.maths`` or a method of a record counts to the function of the step that calls it."""

SMALL = ("update.warmup=null", "rollout.prompts_per_step=2", "rollout.group_size=4", "steps=1", "evaluation=null")
MAX_FUNCTIONS = 8


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


class Lineage(TorchFunctionMode):
    """Records the operations on reward numbers: the function of the step, and the operations that they depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[str, set[int]]] = []
        self.operation_of: dict[int, int] = {}
        self.results: list[Tensor] = []  # referenced so that no id is reused

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        parents = {self.operation_of[id(t)] for t in tensors_in([args, kwargs or {}]) if id(t) in self.operation_of}
        name = getattr(function, "__name__", "")
        caller = self._function_of_step()
        if parents or (name == "tensor" and caller.startswith("PendingScores.") and result.is_floating_point()):
            self.operations.append((caller, parents))
            for tensor in tensors_in(args[0] if name == "__setitem__" else result):
                if tensor.is_floating_point():
                    self.operation_of[id(tensor)] = len(self.operations) - 1
                    self.results.append(tensor)
        return result

    def _function_of_step(self) -> str:
        frame = sys._getframe(2)
        while frame is not None and not frame.f_code.co_filename.startswith(STEP):
            frame = frame.f_back
        return "" if frame is None else frame.f_code.co_qualname

    def path_to(self, result: Tensor) -> list[str]:
        """The functions that lead to a result, in order, one entry per uninterrupted visit."""
        pending, reached = [self.operation_of[id(result)]], set[int]()
        while pending:
            operation = pending.pop()
            if operation not in reached:
                reached.add(operation)
                pending += self.operations[operation][1]
        visits = [self.operations[operation][0] for operation in sorted(reached)]
        return [name for index, name in enumerate(visits) if index == 0 or visits[index - 1] != name]


def by_member(samples: Sequence[Sample]) -> list[float]:
    return [float(sample.member) for sample in samples]


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("quickstart/arithmetic-text", ()), ("quickstart/digits-image", ("policy.call.num_inference_steps=8",))],
)
def test_a_reward_reaches_the_loss_through_eight_functions_each_once(
    name: str, overrides: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(name, [*SMALL, *overrides, f"output={tmp_path}"])
    assert config.prompts is not None
    trainer = Trainer(build_policy(config, "cpu"), [by_member], load_prompts_of(config.prompts), config)
    lineage, paths, backward = Lineage(), [], mmgrpo.training.gradients.backward

    def recorded_backward(loss: Tensor) -> None:
        if id(loss) in lineage.operation_of:
            paths.append(lineage.path_to(loss))
        backward(loss)

    monkeypatch.setattr(mmgrpo.training.gradients, "backward", recorded_backward)
    with lineage:
        trainer.train()
    assert paths
    for path in paths:
        assert path[0].startswith("PendingScores."), path
        assert len(path) == len(set(path)), path  # no function twice
        assert len(path) <= MAX_FUNCTIONS, path
