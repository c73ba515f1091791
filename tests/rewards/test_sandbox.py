"""Hostile programs: none exceeds its limits, reads what it must not, or outlives its sandbox."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.system.sandbox import LAUNCHER, PYTHON, Program, SandboxLimits, run
from tests.rewards.sandboxed import needs_sandbox, ran

pytestmark = needs_sandbox

LAST_BYTE = -1


def last_line(output: bytes) -> str:
    return output.decode().strip().splitlines()[LAST_BYTE]


def test_a_program_reads_writes_and_ends() -> None:
    outcome = ran("import sys; print(input()[::-1]); sys.exit(3)", "abc")
    assert (outcome.ending, outcome.code, outcome.output, outcome.succeeded) == ("exited", 3, b"cba\n", False)
    assert 0 < outcome.cpu_s < 10
    assert 1 < outcome.memory_mb < 1024


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        pytest.param("import socket; socket.create_connection(('1.1.1.1', 80), 2)", "Network is unreachable", id="net"),
        pytest.param("bytearray(4 << 30)", "MemoryError", id="memory"),
        pytest.param("open('/usr/x', 'w')", "Read-only file system", id="system"),
        pytest.param("import os; open(os.__file__, 'a')", "denied|Read-only", id="python"),
        pytest.param("open('x', 'wb').write(bytes(99 << 20))", "No space left|too large", id="disk"),
        pytest.param("import os; os.kill(1, 9)", "not permitted", id="first process"),
        pytest.param("open('/proc/1/environ').read()", "Permission denied", id="its environment"),
        pytest.param("import os; os.setuid(0)", "not permitted|Invalid argument", id="root"),
        pytest.param("import os; os.memfd_create('x')", "not permitted", id="uncounted memory"),
        pytest.param("import os; os.mkdir('d'); os.chroot('d')", "not permitted", id="chroot"),
    ],
)  # fmt: skip
def test_forbidden_actions_fail(code: str, reason: str) -> None:
    outcome = ran(code)
    assert outcome.code == 1
    assert any(text in last_line(outcome.errors) for text in reason.split("|"))


def test_files_and_variables_of_the_trainer_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_TRAINER", "7")
    (tmp_path / "tests.json").write_text("[]")
    tmp_path.chmod(0o755)
    outcome = ran(f"import os; print(os.path.exists({str(tmp_path)!r}), os.listdir('.'), sorted(os.environ))")
    variables = ["HOME", "LANG", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PATH", "PYTHONHASHSEED"]
    assert outcome.output.decode() == f"False ['main.py'] {variables}\n"
    listing = Program(command=("/bin/ls", str(tmp_path)), paths=(str(tmp_path),))
    assert run(listing).output == b"tests.json\n"


def test_it_reaches_no_server_of_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome = ran(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)")
        assert outcome.code == 1
        assert not outcome.output


def test_it_cannot_touch_our_process() -> None:
    assert "ProcessLookupError" in last_line(ran(f"import os; os.kill({os.getpid()}, 9)").errors)


def test_a_fork_bomb_ends() -> None:
    code = "import os, time\ntry:\n  for n in range(999): os.fork() or time.sleep(99)\nexcept OSError: print(n)"
    outcome = ran(code, processes=6)
    assert outcome.ending == "exited"
    assert 1 <= int(outcome.output) <= 6


def test_no_process_continues_after_the_end() -> None:
    """A child that left the session holds the pipe; it is gone with the sandbox."""
    began = time.monotonic()
    assert ran("import os, time\nif os.fork() == 0:\n os.setsid()\n time.sleep(60)").succeeded
    assert time.monotonic() - began < 30


def test_an_endless_loop_and_endless_output_are_stopped() -> None:
    assert ran("while True: pass", time_s=0.3).ending == "late"
    outcome = ran("while True: print('x' * 9999)", output_kb=10)
    assert outcome.ending == "too much output"
    assert len(outcome.output) <= (10 << 10) + (1 << 16)


def test_a_program_that_kills_itself_was_killed() -> None:
    outcome = ran("import os; os.abort()")
    assert (outcome.ending, outcome.code, outcome.succeeded) == ("killed", None, False)


def test_threads_run_sandboxes_of_their_own() -> None:
    outputs: list[bytes] = []
    threads = [threading.Thread(target=lambda: outputs.append(ran("print(7)").output)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == [b"7\n"] * 3


def test_without_a_limit_no_program_runs() -> None:
    """Within a sandbox no other can be made."""
    driver = (
        "import os, subprocess, sys\nspec, report = os.pipe(), os.pipe()\nos.write(spec[1], b'{}')\nos.close(spec[1])\n"
        "subprocess.run([sys.executable, 'launcher.py', str(spec[0]), str(report[1])], pass_fds=[spec[0], report[1]])\n"
        "print(os.read(report[0], 999).decode())"
    )
    program = Program(
        command=(*PYTHON, "main.py"), files={"main.py": driver, "launcher.py": Path(LAUNCHER).read_text()}
    )
    assert run(program).output == b'{"refused": "namespaces: Operation not permitted"}\n'


def test_programs_that_cannot_start_raise() -> None:
    with pytest.raises(RewardError, match=r"not run: /nowhere/lean: .*No such file.*/how-to/sandbox/"):
        run(Program(command=("/nowhere/lean",)))
    with pytest.raises(ConfigError, match="needs time_s > 0, got 0"):
        SandboxLimits(time_s=0)
