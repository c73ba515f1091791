"""A vLLM server that is started for a run, and ends with it however the run ends."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import final

from mmgrpo.errors import ConfigError, EngineError
from mmgrpo.system.launch_environment import without_launcher
from mmgrpo.system.process_guard import GuardedProcess
from mmgrpo.system.site_pages import page_url

from .engine import EngineModel

HOST = "127.0.0.1"
ENDING_S = 5.0
"""A killed server closes its connections before its last process has ended; a message waits so long for that."""

POLL_S = 0.5
"""Seconds between two requests to a server that starts."""
GRACE_S = 20.0
"""Seconds that the server gets to remove its shared memory when it ends."""
LOG_BYTES = 2**18
"""Bytes at the end of a log that are searched for errors."""
MAX_LINES = 4

MODULE = "vllm.entrypoints.openai.api_server"
OPTIONS = ("--enable-scale-out", "--logprobs-mode", "processed_logprobs")
"""Options that training needs: tokens in and out, and log-probabilities of the distribution that is sampled from."""
VARIABLES: Mapping[str, str] = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Variables of the server: it has the paths that replace weights, and reports nothing to its authors."""
COMPILED: Mapping[str, str] = {
    "TORCHINDUCTOR_CACHE_DIR": os.path.expanduser("~/.cache/vllm/torchinductor"),
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}
"""Defaults of variables: functions that torch compiles stay in vLLM's cache, without headers that are compiled for
the temporary folder, which does not outlast the server."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's ``--max-lora-rank``."""

SHARE_OPTION = "--gpu-memory-utilization"
DEFAULT_SHARE = 0.92
"""vLLM's default of ``SHARE_OPTION``, the share of a GPU that it takes: ``CacheConfig`` of vLLM 0.32."""
OTHER_LIMITS = ("--kv-cache-memory-bytes", "--config")
"""Options that replace the share, or whose file may set it."""

PREFIX = re.compile(r"^(\([\w ]+pid=\d+\) )?(\w+ [\d-]+ [\d:]+ \[[^]]*\] )?")
ERROR = re.compile(r"[\w.]*(Error|Exception)(: |$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """A vLLM server as a command.

    Attributes:
        python: the Python of an environment with vLLM.
        options: further options of the server.
        variables: further environment variables of the server.
        timeout_s: seconds that it may take to start.
    """

    python: str
    options: Sequence[str]
    variables: Mapping[str, str]
    timeout_s: float

    def __post_init__(self) -> None:
        """Checks the values. Raises ConfigError."""
        if isinstance(self.options, str) or not all(isinstance(option, str) for option in self.options):
            raise ConfigError(
                f'rollout.engine.options is a list of texts, such as ["--max-model-len", "4096"], got {self.options!r}'
            )
        if not self.timeout_s > 0:
            raise ConfigError(f"rollout.engine.start_timeout_s is above 0, got {self.timeout_s}")

    def require_program(self) -> None:
        """Raises ConfigError if the program does not exist on this machine."""
        if not os.access(Path(self.python).expanduser(), os.X_OK):
            raise ConfigError(
                f"rollout.engine.python: there is no program {self.python}; it is the Python of an environment with "
                f"vLLM, such as vllm-env/bin/python ({page_url('how-to/engines')})"
            )

    def line(self, folder: Path, *, dtype: str, port: int, lora_rank: int | None) -> list[str]:
        """The command of a server with the model of a folder; ``lora_rank`` is that of adapters that it will load."""
        program = os.path.abspath(Path(self.python).expanduser())  # a link into another environment must stay one
        model = ["--model", str(folder), "--served-model-name", "policy", "--dtype", dtype]
        lora = [] if lora_rank is None else ["--enable-lora", "--max-lora-rank", str(max_lora_rank(lora_rank))]
        return [program, "-m", MODULE, *model, "--host", HOST, "--port", str(port), *OPTIONS, *lora, *self.options]


def gpu_share(options: Sequence[str]) -> float | None:
    """The share of a GPU that a server takes by its options; None: another option limits its memory.

    Raises ConfigError if the share is not a number above 0 and up to 1.
    """
    share = str(DEFAULT_SHARE)
    for option, following in zip_longest(options, options[1:], fillvalue=""):
        name, equals, value = option.partition("=")
        name = name.replace("_", "-")
        if name in OTHER_LIMITS:
            return None
        if name == SHARE_OPTION:
            share = value if equals else following
    with contextlib.suppress(ValueError):
        if 0 < float(share) <= 1:
            return float(share)
    raise ConfigError(
        f"rollout.engine.options: {SHARE_OPTION} is a share of the GPU, above 0 and up to 1, got {share or 'no value'}"
    )


@final
class VllmServer:
    """A server of this process.

    Attributes:
        url: its address.
        log: file with its output.
    """

    def __init__(self, command: ServerCommand, model: EngineModel, log: Path, *, lora_rank: int | None = None) -> None:
        """Starts it with the current weights, and returns once it answers.

        Args:
            command: the command.
            model: the model.
            log: file that its output is appended to.
            lora_rank: rank of adapters that it will load; None: it loads none.

        Raises:
            ConfigError: its program does not exist.
            EngineError: it ends, or does not answer in time; the message has the errors of its log.
        """
        command.require_program()
        self.log, self._start = log, log.stat().st_size if log.exists() else 0
        with socket.socket() as free:
            free.bind((HOST, 0))
            port = free.getsockname()[1]
        self.url = f"http://{HOST}:{port}"
        self._end_of_output, held_by_server = os.pipe()  # the end of the server closes it
        variables = {**VARIABLES, **{name: str(value) for name, value in command.variables.items()}}
        with tempfile.TemporaryDirectory(prefix="mmgrpo-model-") as folder, log.open("ab") as output:
            model.weights.save(Path(folder))
            self._process = GuardedProcess(
                command.line(Path(folder), dtype=model.dtype, port=port, lora_rank=lora_rank),
                output=output,
                files=[held_by_server],
                environment={**COMPILED, **without_launcher(os.environ), **variables},
                grace_s=GRACE_S,
            )
            os.close(held_by_server)
            try:
                self._wait(command.timeout_s)
            except BaseException:
                self.end()
                raise

    @property
    def state(self) -> str:
        """Whether it has ended, and the last errors, or else the last lines, of its log; for messages."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._start, size - LOG_BYTES))
            lines = [PREFIX.sub("", line).strip() for line in file.read().decode(errors="replace").splitlines()]
        errors = list(dict.fromkeys(line for line in lines if ERROR.match(line)))
        reason = "" if errors else " without an error"
        ended = f"the server has ended{reason}; " if self._has_ended(ENDING_S) else ""
        lines = errors or [line for line in lines if line]
        tail = " | ".join(f"{line:.300}" for line in lines[-MAX_LINES:]) or "none"
        return f"{ended}{'errors' if errors else 'last lines'} in {self.log}: {tail}"

    def end(self) -> None:
        """Ends the server; returns when all its processes have ended."""
        self._process.end()
        os.close(self._end_of_output)

    def _has_ended(self, wait_s: float = 0.0) -> bool:
        return bool(select.select([self._end_of_output], [], [], wait_s)[0])

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if self._has_ended(POLL_S):
                raise EngineError(f"rollout.engine: the server does not start: {self.state}")
            if time.monotonic() > deadline:
                raise EngineError(
                    f"rollout.engine: the server does not answer within start_timeout_s={timeout_s:g} seconds; raise "
                    f"it if it only needs longer; {self.state}"
                )

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{self.url}/health", timeout=POLL_S).close()
            return True
        return False


def max_lora_rank(rank: int) -> int:
    """The least value of ``LORA_RANKS`` that is not below a rank. Raises ConfigError if there is none."""
    ranks = [value for value in LORA_RANKS if value >= rank]
    if not ranks:
        raise ConfigError(
            f"rollout.engine.load_adapters: vLLM has no adapters of rank {rank}, at most {LORA_RANKS[-1]}"
        )
    return ranks[0]
