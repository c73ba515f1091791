"""Temporary replacement of a module's forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn


@contextmanager
def replaced_forward(module: nn.Module, run: Callable[..., Any]) -> Iterator[None]:
    """A context in which ``run(forward, *args, **kwargs)`` replaces the forward of a module.

    Args:
        module: the module; its hooks still run.
        run: takes the module's own forward and its arguments.

    Yields:
        None: nothing.
    """
    instance, before = vars(module), vars(module).get("forward")
    instance["forward"] = partial(run, module.forward)
    try:
        yield
    finally:
        del instance["forward"]
        if before is not None:
            instance["forward"] = before
