"""Verdicts of a database and of commands."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from mmgrpo.rewards.code.queries import SqlExecution
from mmgrpo.rewards.code.shell_commands import Command

from mmgrpo.errors import ConfigError, RewardError
from tests.rewards.sandboxed import needs_sandbox
from tests.rewards.written import wrote

SCHEMA = "create table t(a, b); insert into t values (1, 'x'), (2, 'y'), (2, 'y')"


def score_of_code(reward: Any, code: str, **columns: Any) -> float | None:
    (score,) = reward([wrote(f"```\n{code}\n```", **columns)])
    return None if score is None else float(score)


@pytest.mark.first_case
@needs_sandbox
@pytest.mark.parametrize(
    ("query", "compare", "expected"),
    [
        ("select a from t order by a desc", "multiset", 1),
        ("select a from t order by a desc", "list", 0.1),
        ("select distinct a from t", "multiset", 0.1),
        ("select distinct a from t", "set", 1),
        ("select nothing from t", "set", 0),
        ("delete from t", "set", 0),
        ("attach database '/tmp/x' as y", "set", 0),
        ("select load_extension('/usr/lib/x')", "set", 0),
        ("select a from t; select a from t", "set", 0),
        ("with recursive c(n) as (select 1 union all select n + 1 from c) select max(n) from c", "set", 0),
    ],
)
def test_queries_by_their_results(query: str, compare: Any, expected: float) -> None:
    reward = SqlExecution(compare=compare, runs=0.1, time_s=1.0)
    assert score_of_code(reward, query, query="select a from t", schema=SCHEMA) == expected


@pytest.mark.nightly
@needs_sandbox
def test_queries_by_their_columns_and_whether_they_run() -> None:
    """The reference reads both columns, a and b."""
    row = {"query": "select a from t where b = 'y'", "schema": SCHEMA}
    columns, runs = SqlExecution(measure="columns"), SqlExecution(measure="runs")
    assert [score_of_code(columns, q, **row) for q in ("select b, a from t", "select a from t", "select x from t")] == [
        1,
        0.5,
        0,
    ]
    assert [score_of_code(runs, q, **row) for q in ("select 7", "select a from u")] == [1, 0]


@needs_sandbox
def test_a_database_of_a_file_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    path = tmp_path / "shop" / "shop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(SCHEMA)
    before = path.read_bytes()
    reward = SqlExecution(database=f"{tmp_path}/{{db_id}}/{{db_id}}.sqlite")
    assert score_of_code(reward, "select 1 + 1", query="select max(a) from t", db_id="shop") == 1
    assert score_of_code(reward, "drop table t", query="select max(a) from t", db_id="shop") == 0
    assert path.read_bytes() == before
    assert score_of_code(reward, "select 2", query="select nothing from t", db_id="shop") is None
    with pytest.raises(RewardError, match=r"there is no database .*/books\.sqlite: set the key 'database'"):
        score_of_code(reward, "select 2", query="select 2", db_id="books")


@needs_sandbox
def test_a_commands_status_is_the_verdict() -> None:
    parses = Command()
    assert score_of_code(parses, "x = 1") == 1
    assert score_of_code(parses, "x = = 1") == 0
    assert score_of_code(Command(forbid=r"\bsorry\b"), "x = 'sorry'") == 0
    assert score_of_text(parses, "no code") == 0


@needs_sandbox
def test_a_bench_of_the_row_and_a_number_of_the_output() -> None:
    """A text of the row around the answer, and a file of the row that reads it."""
    settings: dict[str, Any] = {
        "command": ["sh", "bench.sh"],
        "file": "answer.txt",
        "template": "{head}:{answer}",
        "files": {"bench.sh": "bench"},
        "extract": "none",
    }
    row = {"head": "{answer}", "bench": 'test "$(cat answer.txt)" = "{answer}:7" && echo speed 0.25'}
    assert score_of_text(Command(**settings), "7", **row) == 1
    assert score_of_text(Command(**settings, number=r"speed ([\d.]+)"), "7", **row) == 0.25
    assert score_of_text(Command(**settings, expect="fast"), "7", **row) == 0
    assert score_of_text(Command(**settings), "8", **row) == 0
    assert score_of_text(Command(**settings), "7", bench="true") is None


def score_of_text(reward: Any, text: str, **columns: Any) -> float | None:
    (score,) = reward([wrote(text, **columns)])
    return None if score is None else float(score)


@needs_sandbox
def test_a_program_that_the_sandbox_does_not_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a shim of pyenv is: first on the PATH, in the folder of a person."""
    shims = tmp_path / "shims"
    shims.mkdir()
    for name in ("python3", "checker"):
        (shims / name).write_text("#!/bin/sh\nexit 0\n")
        (shims / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}{os.pathsep}{os.environ['PATH']}")
    assert score_of_code(Command(), "x = = 1") == 0
    with pytest.raises(RewardError, match=rf"command 'checker' is {shims}/checker, which the sandbox does not read"):
        score_of_code(Command(command=["checker"]), "x")
    assert score_of_code(Command(command=["checker"], paths=[str(tmp_path / "shims")]), "x") == 1


def test_missing_programs_and_columns_raise() -> None:
    with pytest.raises(RewardError, match="command 'no-such-prover' not found: install it"):
        score_of_code(Command(command=["no-such-prover"]), "x")
    with pytest.raises(ConfigError, match=r"names without folders, got \.\./x"):
        Command(file="../x")
    with pytest.raises(ConfigError, match="pattern that cannot be read"):
        Command(expect="(")
    with pytest.raises(ConfigError, match="must be lists"):
        Command(command="lean x")
    with pytest.raises(ConfigError, match=r"runs must be in \[0, 1\]"):
        SqlExecution(runs=2)
