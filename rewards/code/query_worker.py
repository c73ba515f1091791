"""Runs two queries on one database and compares what they give: started as a file in a sandbox.

``python query_worker.py GIVEN`` reads ``{"database", "schema", "reference", "query", "compare"}`` from a file and
writes ``{"reference": reason}`` where the reference cannot be run, else ``{}`` and, once the query has run, ``{"error":
text}`` or ``{"error": null, "same": bool, "columns": share}``: whether both give the same, and how alike the columns
are that they read. Only reading is allowed to either query, one statement each.
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
    """Answers what the file asks."""
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
    print("{}", flush=True)  # from here on what is late is the query
    try:
        rows, read = _rows(connection, request["query"])
    except (sqlite3.Error, ValueError, MemoryError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}))
        return
    columns = len(reference_columns & read) / len(reference_columns | read) if reference_columns | read else 1.0
    print(json.dumps({"error": None, "same": collect(rows) == collect(reference_rows), "columns": columns}))


def _rows(connection: sqlite3.Connection, query: str) -> tuple[list[Any], set[tuple[str, str]]]:
    """What a query gives, and the columns that it reads."""
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
