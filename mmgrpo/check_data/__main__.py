"""``python -m mmgrpo.check_data [--rule NAME]`` prints the faults of the shipped data; exit code 1 if it has some."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mmgrpo.check_data import RULES, DataFiles, apply_rules
from mmgrpo.system.console import escape_controls
from mmgrpo.system.folders import PACKAGE, TOP


def main(arguments: Sequence[str] | None = None, *, data: DataFiles | None = None) -> int:
    """Applies the rules to data.

    Args:
        arguments: of the command line; None: those of the process.
        data: the data; None: the shipped files.

    Returns:
        The exit code: 0 without faults, 1 with some, 2 outside a clone, without the tests that the data name.
    """
    parser = argparse.ArgumentParser(prog="python -m mmgrpo.check_data", description="Check the shipped data.")
    parser.add_argument("--rule", choices=sorted(RULES), action="append", help="Apply this rule only; repeatable.")
    if data is None and TOP == PACKAGE:
        sys.stderr.write(
            "error: the shipped data name tests, which an installed package does not have: clone the repository, and "
            "call python -m mmgrpo.check_data in it\n"
        )
        return 2
    names = parser.parse_args(arguments).rule or list(RULES)
    report = apply_rules([RULES[name] for name in names], data or DataFiles())
    for fault in report.faults:
        sys.stdout.write(f"{escape_controls(fault)}\n")
    sys.stdout.write(f"{report.summary}\n")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
