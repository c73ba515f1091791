"""The table of all cases."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.agreement import advantages, denoising, groups, losses, matching, plans
from benchmarks.agreement.comparing import DRAWS, Agreement, Case, agreement

CASES: Sequence[Case] = (
    *advantages.CASES,
    *losses.CASES,
    *groups.CASES,
    *denoising.CASES,
    *matching.CASES,
    *plans.CASES,
)
BOUND = 1e-6


def table(result: Sequence[Agreement]) -> Iterator[str]:
    """The lines of the table."""
    yield "| method | function of the authors | difference |"
    yield "| --- | --- | --- |"
    for row in result:
        source = row.case.source
        called = f"{source.repo}@{row.commit or '-'}, `{source.names[0]}`"
        note = f": {row.case.note}" if row.case.note else ""
        yield f"| {row.case.method} | {called}{note} | {_written(row.difference) or 'no clone'} |"


def agrees(row: Agreement) -> bool:
    """Whether a case that was run stays within the bound, relative to numbers above 1."""
    return all(value <= BOUND * max(1.0, row.size[name]) for name, value in row.difference.items())


def _written(difference: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.0e}" for name, value in difference.items())


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a case is beyond the bound."""
    parser = argparse.ArgumentParser(prog="benchmarks.agreement", description=__doc__)
    parser.add_argument("folder", type=Path, help="clones, each FOLDER/OWNER+NAME/repo")
    parser.add_argument("--only", nargs="*", help="methods")
    parser.add_argument("--draws", type=int, default=DRAWS)
    chosen = parser.parse_args(words)
    cases = [case for case in CASES if not chosen.only or case.method in chosen.only]
    result = [agreement(chosen.folder, case, chosen.draws) for case in cases]
    print("\n".join(table(result)))
    apart = [agreement.case.method for agreement in result if not agrees(agreement)]
    print(f"\nbeyond {BOUND:g}: {', '.join(apart) or 'none'}")
    return 1 if apart else 0


if __name__ == "__main__":
    raise SystemExit(main())
