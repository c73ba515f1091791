"""Runs two queries on one database and compares what they give: started as a file in a sandbox.

``python query_worker.py GIVEN`` reads ``{"database", "schema", "reference", "query", "compare"}`` from a file and
writes ``{"reference": true}`` where the reference cannot be run, else ``{"error": text or null, "same": bool}``. Only
reading is allowed to either query, one statement each.
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
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY)
    print(json.dumps(_compared(connection, given)))


def _compared(connection: sqlite3.Connection, given: Mapping[str, str]) -> dict[str, Any]:
    made = COMPARED[given["compare"]]
    try:
        wanted = made(_rows(connection, given["reference"]))
    except (sqlite3.Error, ValueError) as error:
        return {"reference": str(error)}
    print("{}", flush=True)  # from here on what is late is the query
    try:
        return {"error": None, "same": made(_rows(connection, given["query"])) == wanted}
    except (sqlite3.Error, ValueError, MemoryError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:200], "same": False}


def _rows(connection: sqlite3.Connection, query: str) -> list[Any]:
    rows = connection.execute(query).fetchmany(MAX_ROWS + 1)
    if len(rows) > MAX_ROWS:
        raise ValueError(f"more than {MAX_ROWS} rows")
    return rows


if __name__ == "__main__":
    main()
