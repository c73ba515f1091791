"""Trust in run folders: code and servers in the configuration of another user's run are not used without ``--trust``.

A configuration names code (``python:module:function``, tools, commands, a model's remote code) and servers that would
receive samples and keys. A run folder that this user's program wrote, according to a file in their home, is trusted;
any other needs ``--trust``. The examples in the package are always trusted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mmgrpo.config.loading import read_layers
from mmgrpo.config.registry import ENVIRONMENTS, REWARDS
from mmgrpo.errors import ConfigError
from mmgrpo.system.files import append_line
from mmgrpo.system.remote_files import is_url
from mmgrpo.system.targets import PYTHON, is_python_target

TRUSTED_MODULES = "mmgrpo.examples."
"""Prefix of modules whose functions any configuration may name."""

SERVERS = ("url", "key_variable", "token_variable", "command", "python")
"""Settings that send samples, and secrets of the environment, to a server, or start one."""

SWITCHES = ("trust_remote_code", "outside_media")
"""Settings that download code or data, or read files of data anywhere."""

PUBLIC_HOSTS = ("raw.githubusercontent.com", "huggingface.co")
"""Hosts of public files, from which any configuration may download prompts and templates."""

FUNCTIONS = "functions"
"""Setting of an environment that names functions, with or without ``python:``."""

RUNNING = ("mmgrpo.rewards.code.", "mmgrpo.environments.python:", "mmgrpo.environments.sql:")
"""Prefixes of rewards and environments that run programs: those in samples and data, or a command in the
configuration."""

MAX_LISTED = 5
MAX_RECORD_BYTES = 2**24
"""Bytes that are read of the record of this user's runs; a run has 65."""


def record_trusted_config(config: Path) -> None:
    """Records that this user's program wrote a run's configuration; if that fails, the run will need ``--trust``."""
    with suppress(OSError, RuntimeError):  # a RuntimeError for a user without a home
        path = _record_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not is_trusted_config(config):
            append_line(path, _identity(config))


def is_trusted_config(config: Path) -> bool:
    """Whether this user's program wrote this configuration at this path, unchanged since."""
    try:
        with _record_file().open("rb") as file:
            return _identity(config).encode() in file.read(MAX_RECORD_BYTES).split(b"\n")
    except (OSError, RuntimeError):
        return False


def require_trusted(config: Path, *, trust: bool) -> None:
    """Requires ``--trust`` for another user's configuration that would run code or call servers.

    Args:
        config: the file; nothing in it is imported.
        trust: whether the user gave ``--trust``.

    Raises:
        ConfigError: the configuration is not trusted; the message names its code and servers.
    """
    if trust or is_trusted_config(config):
        return
    settings = list(untrusted_settings(read_layers(config)))
    if settings:
        more = f" and {len(settings) - MAX_LISTED} more" if len(settings) > MAX_LISTED else ""
        raise ConfigError(
            f"{config} would run code or call servers, and no run of yours wrote it there: "
            f"{'; '.join(settings[:MAX_LISTED])}{more}. Read the file, and give --trust if you want that"
        )


def require_inside_run(run: Path, path: Path, *, trust: bool) -> None:
    """Raises ConfigError if links lead a path out of a run folder, unless the run is the user's or trusted."""
    if not (trust or is_trusted_config(run / "config.yaml") or path.resolve().is_relative_to(run.resolve())):
        raise ConfigError(f"{path} leads out of {run}, to {path.resolve()}: give --trust if you want that")


def untrusted_settings(values: Any, path: str = "") -> Iterator[str]:
    """Yields the settings of a configuration that run code or call servers, as ``key: value``, in order."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            child_path = f"{path}.{key}" if path else str(key)
            if _needs_trust(str(key), value):
                yield f"{child_path}: {value!r:.80}"
            else:
                yield from untrusted_settings(value, child_path)
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from untrusted_settings(value, f"{path}[{number}]")
    elif isinstance(values, str) and (_is_foreign_code(values) or _is_foreign_file(values)):
        yield f"{path}: {values!r:.80}"


def _needs_trust(key: str, value: Any) -> bool:
    key = key.rpartition(".")[2]  # a run of a series sets dotted keys
    if key in SERVERS or key in SWITCHES:
        return bool(value)
    if key == FUNCTIONS:
        targets = value if isinstance(value, list | tuple) else [value]
        return not all(isinstance(target, str) and _is_trusted(target) for target in targets)
    targets = {**REWARDS, **ENVIRONMENTS}
    return key == "name" and isinstance(value, str) and targets.get(value, "").startswith(RUNNING)


def _is_foreign_code(value: str) -> bool:
    return is_python_target(value) and not _is_trusted(value)


def _is_foreign_file(value: str) -> bool:
    return is_url(value) and urlsplit(value).hostname not in PUBLIC_HOSTS


def _is_trusted(target: str) -> bool:
    return target.removeprefix(PYTHON).startswith(TRUSTED_MODULES)


def _identity(config: Path) -> str:
    folder = str(config.parent.resolve()).encode(errors="surrogateescape")
    return hashlib.sha256(folder + b"\0" + config.read_bytes()).hexdigest()


def _record_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "mmgrpo" / "runs"
