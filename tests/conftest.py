"""Fixtures and settings of all tests."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.few_combinations import few_combinations

gc.disable()  # until all is imported

if "PYTEST_XDIST_WORKER" in os.environ:  # its last act: freeing every module and model takes ten seconds
    atexit.register(os._exit, 0)

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process compiles torch and the rest again
sys.dont_write_bytecode = False  # what the workers of pytest-xdist take over
os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"  # trio's searches all objects for references to its random generator
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process a core is there; on more threads sums are rounded otherwise
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # likewise: two short texts wait longer for threads
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="mmgrpo-state-")  # runs of tests are no runs of a person

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # runs sync every file, and wait for a disk each time


@pytest.hookimpl(tryfirst=True)  # before items are selected by their marks
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Marks cases of ``each_value`` and ``first_case`` nightly, except those that they leave daily."""
    cases = defaultdict(list)
    named: set[str] = set()
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        test = item.nodeid.partition("[")[0]
        if "first_case" in marks and not marks & {"nightly", "slow", "gpu"}:
            if test in named:
                item.add_marker(pytest.mark.nightly)
            named.add(test)
        if isinstance(item, pytest.Function) and "each_value" in marks and "nightly" not in marks:
            cases[item.nodeid.partition("[")[0]].append(item)
    for members in cases.values():
        daily = few_combinations([item.callspec._idlist for item in members])  # an id for each parametrize
        for number, item in enumerate(members):
            if number not in daily:
                item.add_marker(pytest.mark.nightly)


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not look through it again and again.

    It is forked for the tests that need several processes, before a test has used any of it.
    """
    gc.collect()
    gc.freeze()
    if forked := sys.modules.get("tests.forked"):
        forked.start_server()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_sessionfinish() -> None:
    """pytest collects five times more, which need not look at what is left; at the exit all is freed again."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # or extensions complain of objects that were never freed
