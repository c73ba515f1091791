"""Answers read-only queries on one database; runs as a script in a sandbox.

``python sql_worker.py SETTINGS`` reads ``{"engine", "database", "schema", "max_rows"}`` from a file and opens the
database, or creates one in memory by the script ``schema``. It answers a first, empty line with ``{"error": text}``,
null if the database is open. Then it answers each line ``{"query": text}`` with ``{"error": text}`` or with
``{"columns": [..], "rows": [[text, ..], ..], "more": bool}``. Only single statements that read are executed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

MAX_CELL_CHARS = 1_000

Query = Callable[[str], Any]
"""Executes a query and returns its cursor."""


def main() -> None:
    """Answer the lines of the standard input."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    with open(sys.argv[1], encoding="utf-8") as file:
        settings = json.load(file)
    execute: Query | None = None
    try:
        execute, reply = OPEN[settings["engine"]](settings["database"], settings["schema"]), {"error": None}
    except Exception as error:  # of the database library
        reply = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(reply), file=replies, flush=True)
    next(requests)  # the line that asks whether the database is open
    for line in requests:
        if execute is None:
            break
        print(json.dumps(answer(execute, json.loads(line)["query"], settings["max_rows"])), file=replies, flush=True)


def answer(execute: Query, query: str, max_rows: int) -> dict[str, Any]:
    """The rows of a query, or its error.

    Args:
        execute: executes it.
        query: the query.
        max_rows: maximum number of rows.

    Returns:
        The answer of the worker.
    """
    try:
        cursor = execute(query)
        rows = cursor.fetchmany(max_rows + 1)
        columns = [str(column[0]) for column in cursor.description or ()]
    except Exception as error:  # of the database library, and of memory
        return {"error": f"{type(error).__name__}: {error}"[:MAX_CELL_CHARS]}
    cells = [[_text_of(value) for value in row] for row in rows[:max_rows]]
    return {"columns": columns, "rows": cells, "more": len(rows) > max_rows}


def _text_of(value: Any) -> str:
    text = "NULL" if value is None else value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= MAX_CELL_CHARS else f"{text[:MAX_CELL_CHARS]}..."


def open_sqlite(database: str, schema: str) -> Query:
    """Open a SQLite database.

    Args:
        database: path of the file; empty: in memory.
        schema: the script that creates it in memory.

    Returns:
        The function that executes a query.
    """
    if database:
        connection = sqlite3.connect(f"file:{database}?mode=ro&immutable=1", uri=True)
    else:
        connection = sqlite3.connect(":memory:")
        connection.executescript(schema)
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    connection.execute("SELECT count(*) FROM sqlite_master")  # of a file that is no database
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY)
    return connection.execute


def open_duckdb(database: str, schema: str) -> Query:
    """Open a DuckDB database, likewise."""
    import duckdb

    limits: Any = {"threads": 1, "enable_external_access": False}
    if database:
        connection = duckdb.connect(database, read_only=True, config=limits)
    else:
        connection = duckdb.connect(":memory:", config=limits)
        connection.execute(schema)
    connection.execute("SET lock_configuration = true")

    def execute(query: str) -> Any:
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise ValueError("only a single statement that reads is allowed")
        return connection.execute(statements[0])

    return execute


OPEN: dict[str, Callable[[str, str], Query]] = {"sqlite": open_sqlite, "duckdb": open_duckdb}

if __name__ == "__main__":
    main()
