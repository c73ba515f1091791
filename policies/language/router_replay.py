"""Router replay: updates of a mixture of experts use the experts that each token had when its row was first scored.

Axes: N rows, L tokens of a row with its prompt, E experts, k experts of a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mmgrpo.errors import ConfigError

from ..completion import Completion

Routes = dict[tuple[int, int], Tensor]
"""The choices of a row, (tokens, k) on the host, by the number of the block and of its choice."""

_Rows = tuple[Sequence[Routes], Sequence[int]]
"""The choices and the length of each row of a forward."""


class RouterReplay:
    """The experts of the rows that were scored, which later forwards of them take.

    Attributes:
        routes_of: the choices of each row.
    """

    def __init__(self, model: nn.Module) -> None:
        """Hooks the blocks of a model: modules with a part named experts. Raises ConfigError if there are none."""
        self.routes_of: WeakKeyDictionary[Completion, Routes] = WeakKeyDictionary()
        self._current: _Rows | None = None
        self._of_graph: _Rows | None = None  # of the last forward with grad
        self._choices: list[_Choices | None] = []
        blocks = [module for module in model.modules() if hasattr(module, "experts")]
        if not blocks:
            raise ConfigError(f"policy.router_replay: {type(model).__name__} has no experts; remove it")
        for number, block in enumerate(blocks):
            block.register_forward_pre_hook(partial(self._begin, number))
            block.register_forward_hook(self._end, always_call=True)

    @contextmanager
    def rows(self, completions: Sequence[Completion], lengths: Sequence[int]) -> Iterator[None]:
        """A context in which a forward of these rows, without a cache, takes the stored experts and stores new ones.

        Layers that a later backward recomputes take the experts of the last forward with grad.

        Args:
            completions: of each row.
            lengths: tokens of each row with its prompt, which begins at index 0.

        Yields:
            None: nothing.
        """
        self._current = [self.routes_of.setdefault(completion, {}) for completion in completions], lengths
        try:
            yield
        finally:
            self._current = None

    def _begin(self, number: int, *_: object) -> None:
        recomputes = torch._C._current_graph_task_id() != -1  # what torch's checkpointing asks too
        if torch.is_grad_enabled() and not recomputes:
            self._of_graph = self._current
        rows = self._of_graph if recomputes else self._current
        choices = None if rows is None else _Choices(*rows, number)
        self._choices.append(choices)
        if choices is not None:
            choices.__enter__()

    def _end(self, *_: object) -> None:
        if (choices := self._choices.pop()) is not None:
            choices.__exit__(None, None, None)


@final
class _Choices(TorchFunctionMode):
    """A context in which ``torch.topk`` of the tokens of some rows takes the stored choices.

    A token without a stored choice takes the likeliest experts, which are stored.
    """

    def __init__(self, rows: Sequence[Routes], lengths: Sequence[int], number: int) -> None:
        super().__init__()
        self._rows, self._lengths, self._block, self._calls = rows, lengths, number, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return output
        num_choices = output.indices.numel() // output.indices.shape[-1]
        if num_choices != len(self._rows) * max(self._lengths):  # of groups of experts within a token
            return output
        scores = args[0] if args else (kwargs or {})["input"]
        chosen = self._chosen(output.indices)
        return type(output)((scores.gather(-1, chosen), chosen))

    def _chosen(self, likeliest: Tensor) -> Tensor:
        """The choices in place of the likeliest ones, (N L, k) or (N, L, k)."""
        key, num = (self._block, self._calls), len(self._rows)
        self._calls += 1
        chosen_NLk = likeliest.reshape(num, -1, likeliest.shape[-1]).clone()
        for row, length, chosen_Lk in zip(self._rows, self._lengths, chosen_NLk, strict=True):
            stored = row.get(key)
            if stored is not None:
                chosen_Lk[: min(len(stored), length)] = stored[:length].to(chosen_Lk)
            if stored is None or len(stored) < length:
                row[key] = chosen_Lk[:length].to("cpu", torch.int16)
        return chosen_NLk.view_as(likeliest)
