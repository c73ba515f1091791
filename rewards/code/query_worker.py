"""Runs two queries on one database and compares their results; runs as a script in a sandbox.

``python query_worker.py REQUEST`` reads ``{"database", "schema", "reference", "query", "compare"}`` from a file and
writes ``{"reference": reason}`` if the reference query fails, else ``{}`` and, after the query, ``{"error": text}`` or
``{"error": null, "same": bool, "columns": share}``: whether both return the same, and the Jaccard index of the columns
that they read. Both queries must be single read-only statements.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

MAX_ROWS = 100_000

READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

COMPARED: Mapping[str, Callable[[list[Any]], Any]] = {"set": set, "multiset": Counter, "list": list}


def main() -> None:
    """Run the request of the file."""
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    if request["database"]:
        connection = sqlite3.connect(f"file:{request['database']}?mode=ro&immutable=1", uri=True)
    else:
        connection = sqlite3.connect(":memory:")
        connection.executescript(request["schema"])
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    collect = COMPARED[request["compare"]]
    try:
        reference_rows, reference_columns = _rows(connection, request["reference"])
    except (sqlite3.Error, ValueError) as error:
        print(json.dumps({"reference": str(error)}))
        return
    print("{}", flush=True)  # a timeout after this line is caused by the query
    try:
        rows, read = _rows(connection, request["query"])
    except (sqlite3.Error, ValueError, MemoryError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}))
        return
    columns = len(reference_columns & read) / len(reference_columns | read) if reference_columns | read else 1.0
    print(json.dumps({"error": None, "same": collect(rows) == collect(reference_rows), "columns": columns}))


def _rows(connection: sqlite3.Connection, query: str) -> tuple[list[Any], set[tuple[str, str]]]:
    """The rows of a query, and the columns that it reads."""
    read: set[tuple[str, str]] = set()

    def allowed(action: int, table: str | None, column: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_READ:
            read.add((table or "", column or ""))
        return sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY

    connection.set_authorizer(allowed)
    rows = connection.execute(query).fetchmany(MAX_ROWS + 1)
    if len(rows) > MAX_ROWS:
        raise ValueError(f"more than {MAX_ROWS} rows")
    return rows, read


if __name__ == "__main__":
    main()
