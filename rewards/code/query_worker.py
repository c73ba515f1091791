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
        given = json.load(file)
    if given["database"]:
        connection = sqlite3.connect(f"file:{given['database']}?mode=ro&immutable=1", uri=True)
    else:
        connection = sqlite3.connect(":memory:")
        connection.executescript(given["schema"])
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    made = COMPARED[given["compare"]]
    try:
        wanted, known = _rows(connection, given["reference"])
    except (sqlite3.Error, ValueError) as error:
        print(json.dumps({"reference": str(error)}))
        return
    print("{}", flush=True)  # from here on what is late is the query
    try:
        rows, read = _rows(connection, given["query"])
    except (sqlite3.Error, ValueError, MemoryError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}))
        return
    columns = len(known & read) / len(known | read) if known | read else 1.0
    print(json.dumps({"error": None, "same": made(rows) == made(wanted), "columns": columns}))


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
