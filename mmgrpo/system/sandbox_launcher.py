"""Create a sandbox and run a command in it; runs as a script with the standard library alone.

``python sandbox_launcher.py SPEC REPORT``: two file descriptors. The launcher reads the command from the first, as
JSON. To the second it writes ``{"refused": reason}`` if a limit cannot be set (then nothing runs), or a dot when the
command starts and ``{"code", "signal", "cpu_s", "memory_mb"}`` when it has ended. It has three child processes:

* one outside, which maps the user ids of the new user namespace;
* the first process of the new process namespace, which creates the file system, waits for the command and reports;
  when it ends, everything in the namespace ends, and it ends with its parent;
* the command.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

HOME = "/sandbox"
USER = 1000  # within
UNPRIVILEGED = 65534  # outside, where root starts the sandbox: of root the kernel counts no processes
DEVICES = ("null", "zero", "full", "random", "urandom")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_RECURSIVE, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH, AT_FDCWD, AT_RECURSIVE, ATTR_RDONLY, ATTR_NOSUID = 2, -100, 0x8000, 1, 2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 1, 22, 38, 2
MOUNT_SETATTR = 442
"""The number of a system call that is the same on all machines."""

DENIED: Mapping[str, tuple[int, int, int, tuple[int, ...]]] = {
    "x86_64": (0xC000003E, 56, 155, (272, 308, 319, 447, 29, 321, 425, 323, 298, 248, 249, 250)),
    "aarch64": (0xC00000B7, 220, 41, (97, 268, 279, 447, 194, 280, 425, 282, 241, 217, 218, 219)),
}
"""Of a machine: its number, ``clone``, ``pivot_root``; and the denied calls: ``unshare``, ``setns``,
``memfd_create``, ``memfd_secret`` and ``shmget`` (memory that no limit counts), ``bpf``, ``io_uring_setup``,
``userfaultfd``, ``perf_event_open``, ``add_key``, ``request_key``, ``keyctl``."""

CLONE3 = 435
EPERM, ENOSYS = 1, 38
RET_ALLOW, RET_ERRNO, RET_KILL = 0x7FFF0000, 0x50000, 0x80000000
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

libc = ctypes.CDLL(None, use_errno=True)


class RefusedError(Exception):
    """A limit cannot be set on this machine."""


def main() -> None:
    """Read the command, run it, and report its result."""
    spec_fd, report = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(report, False)
    with os.fdopen(spec_fd) as file:
        spec = json.load(file)
    try:
        _enter_namespaces()
    except RefusedError as error:
        _refuse(report, error)
    first = os.fork()
    if first == 0:
        _first(spec, report)
    os.close(report)
    os.waitpid(first, 0)


def _first(spec: Mapping[str, Any], report: int) -> NoReturn:
    """The first process of the namespace."""
    try:
        _end_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stdin = _make_root(spec)
        started, starting = os.pipe()
        command = os.fork()
        if command == 0:
            os.close(started)
            _become(spec, stdin, starting)
        os.close(starting)
        for unused in (0, 1, 2):
            os.close(unused)
        with os.fdopen(started) as failures:
            failed = failures.read()
        if failed:
            raise RefusedError(failed)
        os.write(report, b".")
        ended, status, used = os.wait4(-1, 0)
        while ended != command:
            ended, status, used = os.wait4(-1, 0)
    except (RefusedError, OSError) as error:
        _refuse(report, error)
    code, killed = os.waitstatus_to_exitcode(status), os.WIFSIGNALED(status)
    status_fields = {"code": None if killed else code, "signal": -code if killed else None}
    _report(report, status_fields | {"cpu_s": used.ru_utime + used.ru_stime, "memory_mb": used.ru_maxrss / 1024})
    os._exit(0)


def _become(spec: Mapping[str, Any], stdin: int | None, starting: int) -> NoReturn:
    """Execute the command with all limits; writes a failure to ``starting``."""
    try:
        os.setsid()
        if os.getuid() != USER:
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
        if stdin is not None:
            os.dup2(stdin, 0)
        os.chdir(HOME)
        for limit, most in _limits(spec).items():
            resource.setrlimit(limit, (most, most))
        _deny_calls()
        os.execve(spec["command"][0], spec["command"], spec["env"])
    except (RefusedError, OSError, ValueError) as error:
        os.write(starting, f"{spec['command'][0]}: {error}".encode())
    os._exit(127)


def _limits(spec: Mapping[str, Any]) -> dict[int, int]:
    return {
        resource.RLIMIT_NPROC: spec["processes"],
        resource.RLIMIT_AS: spec["memory_bytes"],
        resource.RLIMIT_FSIZE: spec["disk_bytes"],
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
    }


def _enter_namespaces() -> None:
    """Create new user, process, network, mount and IPC namespaces."""
    _end_with_parent()
    root = os.geteuid() == 0
    maps = {
        kind: f"0 0 1\n{USER} {UNPRIVILEGED} 1" if root else f"{USER} {current} 1"
        for kind, current in _current_ids().items()
    }
    waiting, ready = os.pipe()
    mapper = os.fork()
    if mapper == 0:
        os.close(ready)
        os._exit(_map_ids(waiting, os.getppid(), maps))
    os.close(waiting)
    spaces = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS
    try:
        _call("namespaces", libc.unshare, spaces)
        os.write(ready, b".")
    finally:
        os.close(ready)
        status = os.waitpid(mapper, 0)[1]
    if status:
        raise RefusedError("user ids cannot be mapped into a new namespace")


def _current_ids() -> dict[str, int]:
    return {"uid_map": os.geteuid(), "gid_map": os.getegid()}


def _map_ids(waiting: int, pid: int, maps: Mapping[str, str]) -> int:
    if os.read(waiting, 1):
        try:
            for name, text in ({"setgroups": "deny"} | dict(maps)).items():
                Path(f"/proc/{pid}/{name}").write_text(text)
        except OSError:
            return 1
    return 0


def _make_root(spec: Mapping[str, Any]) -> int | None:
    """Create and enter an in-memory file system of limited size, with read-only mounts of the system and other readable
    paths.

    Args:
        spec: the specification of the command.

    Returns:
        A file descriptor of the standard input, if there is one.
    """
    root = Path(spec["root"])
    _mount(None, "/", None, MS_RECURSIVE | MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, f"size={spec['disk_bytes']},nr_inodes=20000,mode=755")
    for name in DEVICES:
        _bind(root, f"/dev/{name}")
    visible = {where for path in (*SYSTEM, *spec["paths"]) for where in (path, os.path.realpath(path))}
    for path in sorted(visible, key=len):  # folders before their contents
        _show(root, path)
    process_files = root / "proc"
    process_files.mkdir(exist_ok=True)
    libc.mount(b"proc", os.fsencode(process_files), b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)  # if it may be
    for folder in (HOME, "/tmp"):
        (root / folder[1:]).mkdir(exist_ok=True)
        _chown_to_user(root / folder[1:])
    for name, text in spec["files"].items():
        path = root / HOME[1:] / name
        path.write_text(text, "utf-8", "replace")
        _chown_to_user(path)
    stdin = None
    if spec["stdin"] is not None:
        path = root / "stdin"
        path.write_text(spec["stdin"], "utf-8", "replace")
        stdin = os.open(path, os.O_RDONLY)
        path.unlink()
    os.chdir(root)
    pivot_root = DENIED[_machine()][2]
    _call("pivot_root", libc.syscall, pivot_root, b".", b".")
    _call("umount2", libc.umount2, b".", MNT_DETACH)
    os.chdir("/")
    return stdin


def _chown_to_user(path: Path) -> None:
    if os.getuid() != USER:
        os.chown(path, USER, USER)


def _show(root: Path, path: str) -> None:
    """Mount a path read-only at the same location; does nothing if it does not exist."""
    if not os.path.exists(path) or os.path.lexists(root / path[1:]):
        return
    attributes = struct.pack("=4Q", ATTR_RDONLY | ATTR_NOSUID, 0, 0, 0)
    target = os.fsencode(_bind(root, path))
    _call(f"{path} read-only", libc.syscall, MOUNT_SETATTR, AT_FDCWD, target, AT_RECURSIVE, attributes, len(attributes))


def _bind(root: Path, path: str) -> Path:
    target = root / path[1:]
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.isdir(path):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    _mount(path, target, None, MS_BIND | MS_RECURSIVE)
    return target


def _deny_calls() -> None:
    """Install a permanent filter of system calls: those of ``DENIED``, and any that creates a user namespace."""
    machine, clone, _, denied = DENIED[_machine()]
    rules = [(LOAD, 0, 0, 4), (JUMP_EQUAL, 1, 0, machine), (RETURN, 0, 0, RET_KILL), (LOAD, 0, 0, 0)]
    if _machine() == "x86_64":  # the x32 ABI has separate call numbers
        rules += [(JUMP_AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, RET_KILL)]
    for number in denied:
        rules += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, RET_ERRNO | EPERM)]
    rules += [(JUMP_EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, RET_ERRNO | ENOSYS)]  # callers fall back to clone
    rules += [(JUMP_EQUAL, 0, 3, clone), (LOAD, 0, 0, 16), (JUMP_BITS, 0, 1, CLONE_NEWUSER)]
    rules += [(RETURN, 0, 0, RET_ERRNO | EPERM), (RETURN, 0, 0, RET_ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
    program = struct.pack("@HP", len(rules), ctypes.addressof(code))
    _call("no_new_privs", libc.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("a filter of system calls", libc.prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0)


def _machine() -> str:
    if platform.machine() not in DENIED:
        raise RefusedError(f"the system call filter supports {', '.join(DENIED)}, not {platform.machine()}")
    return platform.machine()


def _end_with_parent() -> None:
    _call("the end with its parent", libc.prctl, PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _mount(what: str | None, where: str | Path, kind: str | None, flags: int, settings: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (what, where, kind, settings)]
    _call(f"mounting {where}", libc.mount, *texts[:3], ctypes.c_ulong(flags), texts[3])


def _call(what: str, function: Callable[..., int], *arguments: Any) -> None:
    if function(*arguments) != 0:
        raise RefusedError(f"{what}: {os.strerror(ctypes.get_errno())}")


def _refuse(report: int, error: Exception) -> NoReturn:
    _report(report, {"refused": str(error)})
    os._exit(1)


def _report(report: int, message: Mapping[str, Any]) -> None:
    os.write(report, json.dumps(message).encode())


if __name__ == "__main__":
    main()
