"""Whose a run folder is: what a stranger's configuration names is neither imported nor asked, unless a person says so.

A configuration names code (``python:module:function``, tools, commands, a model's own code) and servers that samples
and keys would go to. Where the run folder was written by this user, as a file in their home tells, that is theirs; in
any other it takes ``--trust``. The examples that come with the package are code that is known.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmgrpo.config.loading import read_layers
from mmgrpo.config.registry import REWARDS
from mmgrpo.errors import ConfigError
from mmgrpo.system.files import append_line
from mmgrpo.system.targets import PYTHON, is_own

KNOWN = "mmgrpo.examples."
"""Modules whose functions any configuration may name."""

SERVERS = ("url", "key_variable", "token_variable")
"""Settings that send samples, and secrets of the environment, to somebody."""

SWITCHES = ("trust_remote_code", "allow_fetch")
"""Settings that have code or data fetched."""

FUNCTIONS = "functions"
"""The setting of an environment that names functions, with or without ``python:``."""

RUNNING = "mmgrpo.rewards.code."
"""Rewards that run programs: those of samples and of data, or the configuration's own command."""

MAX_SAID = 5
MAX_KNOWN = 2**24
"""Bytes that are read of the file of this user's runs; a run has 65."""


def note_written(config: Path) -> None:
    """Takes down that this user's program has written a run's configuration; where it cannot, ``--trust`` is needed."""
    with suppress(OSError, RuntimeError):  # the latter of a user without a home
        path = _known_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not is_ours(config):
            append_line(path, _identity(config))


def is_ours(config: Path) -> bool:
    """Whether this user's program has written a run's configuration as it is, where it is."""
    try:
        with _known_file().open("rb") as file:
            return _identity(config).encode() in file.read(MAX_KNOWN).split(b"\n")
    except (OSError, RuntimeError):
        return False


def require_trusted(config: Path, *, trust: bool) -> None:
    """Refuses the configuration of a run folder that would run code or ask servers and is not this user's own.

    Args:
        config: the file, of which nothing is imported.
        trust: whether a person has looked at it.

    Raises:
        ConfigError: it would; the message names what.
    """
    if trust or is_ours(config):
        return
    found = list(suspects(read_layers(config)))
    if found:
        more = f" and {len(found) - MAX_SAID} more" if len(found) > MAX_SAID else ""
        raise ConfigError(
            f"{config} would run code or ask servers, and was not written there by a run of yours: "
            f"{'; '.join(found[:MAX_SAID])}{more}. Look at it, and give --trust if that is what you want"
        )


def require_within(run: Path, path: Path, *, trust: bool) -> None:
    """Refuses (ConfigError) what leads out of a run folder by links, unless the run is this user's own or trusted."""
    if not (trust or is_ours(run / "config.yaml") or path.resolve().is_relative_to(run.resolve())):
        raise ConfigError(f"{path} leads out of {run}, to {path.resolve()}: give --trust if that is what you want")


def suspects(values: Any, where: str = "") -> Iterator[str]:
    """What of a configuration's values runs code or asks servers, as ``key: value``, in its order."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            inner = f"{where}.{key}" if where else str(key)
            if _is_suspect(str(key), value):
                yield f"{inner}: {value!r:.80}"
            else:
                yield from suspects(value, inner)
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from suspects(value, f"{where}[{number}]")
    elif isinstance(values, str) and is_own(values) and not _is_known(values):
        yield f"{where}: {values!r:.80}"


def _is_suspect(key: str, value: Any) -> bool:
    if key in SERVERS or key in SWITCHES:
        return bool(value)
    if key == FUNCTIONS:
        named = value if isinstance(value, list | tuple) else [value]
        return not all(isinstance(one, str) and _is_known(one) for one in named)
    return key == "name" and isinstance(value, str) and REWARDS.get(value, "").startswith(RUNNING)


def _is_known(target: str) -> bool:
    return target.removeprefix(PYTHON).startswith(KNOWN)


def _identity(config: Path) -> str:
    place = str(config.parent.resolve()).encode(errors="surrogateescape")
    return hashlib.sha256(place + b"\0" + config.read_bytes()).hexdigest()


def _known_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "mmgrpo" / "runs"
