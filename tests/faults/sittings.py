"""One session of a run in a separate process: forked, so that the libraries are imported once."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState, PartialState

from mmgrpo import Trainer
from mmgrpo.errors import MmgrpoError
from mmgrpo.runs.stopping import TERMINATING
from tests.faults.runs import Case, Reward
from tests.forked import fork

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.fsync")
DONE, CLEAR, INTERRUPTED, UNCLEAR = 0, 2, 130, 1
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Sitting:
    """How a sitting ended.

    Attributes:
        code: of the process: done, an error of ours, Ctrl-C, something else; negative: the signal that killed it.
        output: the end of what it printed.
        worked_s: seconds that it was on a processor.
    """

    code: int
    output: str
    worked_s: float = 0.0

    @property
    def is_clear(self) -> bool:
        """Whether it ended as expected: normally, by a signal of the trial, or with a deliberate error."""
        return self.code in (
            DONE,
            CLEAR,
            INTERRUPTED,
            -signal.SIGKILL,
            -signal.SIGALRM,
            -signal.SIGINT,
            *(-number for number in TERMINATING),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The folder of a trial: the output of the run, and the logs of the trial."""

    root: Path

    @property
    def output(self) -> Path:
        """The output folder of the run; it may be a separate disk."""
        return self.root / "output"

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.output / "run"

    @property
    def events(self) -> Path:
        """A line for each event in the run folder, of the last sitting."""
        return self.root / "events.log"


def placed(root: Path) -> Place:
    """A new place."""
    place = Place(root=root)
    place.output.mkdir(parents=True)
    return place


def begin(
    case: Case,
    place: Place,
    *,
    reward: Reward | None = None,
    within: Callable[[Trainer], None] = lambda trainer: None,
    before: Callable[[], None] = lambda: None,
    log: str = "output.log",
) -> int:
    """Begins or resumes a run in a new process.

    Args:
        case: the run.
        place: where.
        reward: what judges it; None: what does as a rule.
        within: is called there with the trainer, before it trains.
        before: is called there first.
        log: what it prints goes there, after what is there.

    Returns:
        The process.
    """
    pid = fork()
    if pid:
        return pid
    code = UNCLEAR
    try:
        handle = os.open(place.root / log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        PartialState._reset_state()  # the parent's, of one process
        AcceleratorState._reset_state()
        before()
        trainer = case.make(
            place.output, place.run if (place.run / "config.yaml").is_file() else None, reward or case.reward
        )
        within(trainer)
        trainer.train()
        code = DONE
    except MmgrpoError as error:
        print(f"error: {error}", flush=True)
        code = CLEAR
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def begin_both(
    case: Case, place: Place, *, in_parts: bool = False, within: Callable[[Trainer], None] = lambda trainer: None
) -> list[int]:
    """Begins or resumes a run on two processes, without a launcher.

    Args:
        case: the run.
        place: where.
        in_parts: whether the model is sharded over them (FSDP2).
        within: is called in each with the trainer, before it trains.

    Returns:
        The processes, in rank order; ``output-RANK.log`` is what each prints.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
    }
    environment |= {"ACCELERATE_USE_FSDP": str(in_parts).lower(), "FSDP_VERSION": "2"}

    def before(rank: int) -> None:
        os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))

    return [
        begin(case, place, within=within, before=partial(before, rank), log=f"output-{rank}.log") for rank in range(2)
    ]


def sit_both(case: Case, place: Place, *, in_parts: bool = False) -> Sitting:
    """A sitting of two undisturbed processes: how the first ended, or the second if that failed."""
    pids = begin_both(case, place, in_parts=in_parts)
    result = [ended(pid, place, log=f"output-{rank}.log") for rank, pid in enumerate(pids)]
    return result[0] if result[1].code == DONE else result[1]


def ended(pid: int, place: Place, *, log: str = "output.log", limit_s: float = LIMIT_S) -> Sitting:
    """Waits for a process; one that does not end is killed, which is code 1."""
    until = time.monotonic() + limit_s
    while not (has_ended := _has_ended(pid)) and time.monotonic() < until:
        time.sleep(0.005)
    if not has_ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return Sitting(UNCLEAR, f"it did not end within {limit_s:g} s: {_output_of(place, log)}")
    worked = _processor_s(pid)
    return Sitting(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), _output_of(place, log), worked)


def worked_s(pid: int) -> float | None:
    """Seconds that a child was on a processor, which do not go by what else the machine does; None: it has ended."""
    return None if _has_ended(pid) else _processor_s(pid)


def _has_ended(pid: int) -> bool:
    """Whether a child has ended; it is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _processor_s(pid: int) -> float:
    """Seconds of all threads of a child, also of those that have ended, without its children: CPUCLOCK_SCHED."""
    return time.clock_gettime((~pid << 3) | 2)


def sit(case: Case, place: Place, **arguments: Any) -> Sitting:
    """Both, of an undisturbed sitting."""
    return ended(begin(case, place, **arguments), place)


def watched(place: Place, at: int | None = None, late_s: float | None = None) -> Callable[[], None]:
    """What notes each event that touches the run folder, and dies right before one, or a moment after it began.

    Args:
        place: of the run.
        at: the number of the event, from 1; None: it lives.
        late_s: seconds after it began; None: right before.

    Returns:
        To be called in the process itself.
    """

    def watch() -> None:
        log = os.open(place.events, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        inside, count, fsync = str(place.run), 0, os.fsync
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends it, in the midst of whatever it does

        def happened(event: str, path: str) -> None:
            nonlocal count
            count += 1
            os.write(log, f"{event} {path.removeprefix(inside)}\n".encode())
            if count != at:
                return
            if late_s is None:
                os.kill(os.getpid(), signal.SIGKILL)
            signal.setitimer(signal.ITIMER_REAL, max(late_s or 0, 1e-6))

        def audited(event: str, arguments: tuple[Any, ...]) -> None:
            touched = [str(argument) for argument in arguments[:2] if str(argument).startswith(inside)]
            if event in EVENTS and touched:
                happened(event, touched[0])

        def synced(handle: int) -> None:
            happened("os.fsync", os.readlink(f"/proc/self/fd/{handle}"))
            fsync(handle)

        sys.addaudithook(audited)
        os.fsync = synced  # pyrefly: ignore[bad-assignment]

    return watch


def _output_of(place: Place, log: str) -> str:
    file = place.root / log
    return file.read_text(errors="replace")[-3000:] if file.is_file() else ""  # it was killed before it wrote
