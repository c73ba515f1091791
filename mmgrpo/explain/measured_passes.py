"""A cache of metered passes: a file for each model, call and version of the libraries.

Counting the operators of a model with billions of parameters takes up to minutes on a busy CPU, and is deterministic.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mmgrpo.errors import OutputError
from mmgrpo.explain import memory_meter, operator_times, repeated_blocks
from mmgrpo.explain.memory_meter import Passes
from mmgrpo.explain.operator_times import Operator, Work
from mmgrpo.explain.repeated_blocks import MeteredPass
from mmgrpo.outline import Outline
from mmgrpo.system.files import replace_text

LIBRARIES = ("torch", "transformers", "diffusers", "peft")
METERED = ("update", "rollout")


def cache_file(outline: Outline, call: str) -> Path:
    """The cache file of an outline's passes; its name is a hash of everything that they depend on.

    Args:
        outline: hashed by the classes of its modules and the names, shapes and dtypes of their tensors.
        call: settings of the model call.

    Returns:
        A path in ``$XDG_STATE_HOME/mmgrpo/passes``, by default in ``~/.local/state``.
    """
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "mmgrpo" / "passes"
    digest = hashlib.sha256()
    counts = (outline.update_rows, outline.rollout_rows, len(outline.rollout))
    for part in (call, *counts, *_versions(outline), *_structure(outline)):
        digest.update(f"{part}\0".encode())
    return folder / f"{digest.hexdigest()}.json"


def read_passes(file: Path) -> Passes | None:
    """The passes of a cache file; None if it is missing or cannot be read."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        forward = None if values["forward"] is None else _parse_pass(values["forward"])
        metered = {name: _parse_pass(values[name]) for name in METERED}
        return Passes(**metered, forward=forward, rollout_calls=int(values["rollout_calls"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_passes(file: Path, passes: Passes) -> None:
    """Writes a cache file; if that fails, the passes are counted again the next time."""
    values: dict[str, Any] = {name: _plain(getattr(passes, name)) for name in METERED}
    values["forward"] = None if passes.forward is None else _plain(passes.forward)
    with suppress(OSError, OutputError):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps({**values, "rollout_calls": passes.rollout_calls}))


def _plain(metered: MeteredPass) -> dict[str, Any]:
    return {"num_bytes": metered.num_bytes, "work": _plain_work(metered.work)}


def _plain_work(work: Work) -> list[list[int]]:
    return [[operator.flops, operator.num_bytes, count] for operator, count in work.items()]


def _parse_pass(values: dict[str, Any]) -> MeteredPass:
    return MeteredPass(num_bytes=int(values["num_bytes"]), work=_parse_work(values["work"]))


def _parse_work(rows: list[list[int]]) -> Work:
    return Counter({Operator(flops=flops, num_bytes=size): count for flops, size, count in rows})


def _versions(outline: Outline) -> Iterator[str]:
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            yield f"{library}=={version(library)}"
    for module in (operator_times, memory_meter, repeated_blocks, sys.modules[outline.update.__module__]):
        yield hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()


def _structure(outline: Outline) -> Iterator[str]:
    for name, module in outline.modules.items():
        yield f"{name}:{getattr(module, 'config', None)}"
        for path, part in module.named_modules():
            yield f"{path}:{type(part).__module__}.{type(part).__qualname__}:{part.training}:{part.extra_repr()}"
        for path, tensor in (*module.named_parameters(), *module.named_buffers()):
            yield f"{path}:{tuple(tensor.shape)}:{tensor.dtype}:{tensor.requires_grad}"
