"""Queries of a conversation: their rows, their limits, and no way to change the database or to leave it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.environments.sql import SqlEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Prompt
from tests.policies.families import daily
from tests.rewards.sandboxed import needs_sandbox

pytestmark = needs_sandbox

SCHEMA = "CREATE TABLE city (name TEXT, size INT); INSERT INTO city VALUES ('Oslo', 7), ('Rome', 28), ('Nice', NULL);"
ENGINES = ("sqlite", "duckdb")


def answers(*queries: str, columns: dict[str, Any] | None = None, **settings: Any) -> list[str]:
    """The results of queries of one conversation, without their tags."""
    environment = SqlEnvironment(**settings)
    try:
        environment.reset(Prompt("?", columns={"schema": SCHEMA} if columns is None else columns))
        replies = [environment.step(f"Let us see. <sql>{query}</sql>") for query in queries]
    finally:
        environment.close()
    return [reply.text.removeprefix("<result>\n").removesuffix("\n</result>") for reply in replies]


@pytest.mark.parametrize("engine", ENGINES)
def test_queries_return_the_rows_of_the_database(engine: str) -> None:
    assert answers(
        "SELECT name, size FROM city ORDER BY name", "SELECT sum(size) AS total FROM city WHERE size > 7",
        "SELECT * FROM city WHERE name = 'Bonn'", engine=engine,
    ) == ["name | size\nNice | NULL\nOslo | 7\nRome | 28", "total\n28", "name | size\n(no rows)"]  # fmt: skip


@pytest.mark.first_case
@pytest.mark.each_value
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM city",
        "DROP TABLE city",
        "CREATE TABLE x (y INT)",
        "INSERT INTO city VALUES ('Bonn', 3)",
        "SELECT 1; SELECT 2",
        "ATTACH '/tmp/x.db' AS x",
        "PRAGMA table_info(city)",
    ],
)
def test_statements_that_change_or_leave_the_database_are_errors(engine: str, query: str) -> None:
    error, count = answers(query, "SELECT count(*) AS n FROM city", engine=engine)
    assert error.startswith("Error: ") or (engine, query[:6]) == ("duckdb", "PRAGMA")  # which reads there
    assert count == "n\n3"


def test_duckdb_reads_no_other_files() -> None:
    (error,) = answers("SELECT * FROM read_text('/etc/hostname')", engine="duckdb")
    assert "Error: " in error
    assert "disabled" in error


def test_databases_are_files_that_columns_name(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    tmp_path.chmod(0o755)
    with sqlite3.connect(tmp_path / "geo.sqlite") as connection:
        connection.executescript(SCHEMA)
    duckdb.connect(str(tmp_path / "geo.duckdb")).execute(SCHEMA).close()
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    for engine in ENGINES:
        (tmp_path / f"geo.{engine}").chmod(0o644)
        database = f"{tmp_path}/{{db_id}}.{engine}"
        columns = {"db_id": "geo"}
        assert answers("SELECT max(size) AS m FROM city", columns=columns, database=database, engine=engine) == [
            "m\n28"
        ]
        with pytest.raises(DataError, match="no value in the column 'db_id'"):
            answers(columns={}, database=database, engine=engine)
        with pytest.raises(DataError, match="there is no database"):
            answers(columns={"db_id": "nowhere"}, database=database, engine=engine)


def test_rows_and_cells_are_bounded() -> None:
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100) SELECT i FROM n"
    assert answers(many, max_rows=2) == ["i\n1\n2\n[more rows are left out: at most 2 are listed]"]
    (long,) = answers("SELECT hex(zeroblob(5000)) AS zeros", max_chars=50)
    assert long == f"zeros\n{'0' * 44}\n[959 characters are cut off]"


@pytest.mark.nightly
@pytest.mark.parametrize("engine", daily(ENGINES, "sqlite"))
def test_endless_queries_end_without_ending_the_conversation(engine: str) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    late, next_answer = answers(endless, "SELECT 1 AS one", engine=engine, time_s=2.0)
    assert late == "Error: the query takes longer than 2 s, or too much memory"
    assert next_answer == "one\n1"


def test_calls_are_read_in_each_format() -> None:
    environment = SqlEnvironment(call="tool_call", answer_tag="answer")
    try:
        opening = environment.reset(Prompt("?", columns={"schema": SCHEMA}))
        assert [tool["function"]["name"] for tool in opening.tools] == ["query"]
        call = json.dumps({"name": "query", "arguments": {"query": "SELECT name FROM city WHERE size = 28"}})
        assert environment.step(f"<tool_call>{call}</tool_call>").text == "name\nRome"
        assert environment.step("<answer>Rome</answer>").done
    finally:
        environment.close()
    fenced = SqlEnvironment(call="fence")
    try:
        assert "```sql\n...```" in fenced.reset(Prompt("?", columns={"schema": SCHEMA})).text
        assert fenced.step("```sql\nSELECT 2 AS two\n```").text == "```result\ntwo\n2\n```"
        assert fenced.step("Two.").done
    finally:
        fenced.close()


def test_rows_without_a_readable_database_are_errors() -> None:
    with pytest.raises(DataError, match="no text in the column 'schema'"):
        answers(columns={})
    with pytest.raises(DataError, match='cannot be opened: OperationalError: near "BROKEN"'):
        answers(columns={"schema": "BROKEN;"})
    with pytest.raises(ConfigError, match="schema of sql would have no effect: remove it, or database"):
        answers(database="d.sqlite", schema="schema")
    with pytest.raises(ConfigError, match="sqlite, duckdb"):
        answers(engine="oracle")
