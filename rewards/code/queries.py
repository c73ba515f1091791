"""Reward for database queries: results are compared with those of the reference query."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.system.sandbox import PYTHON, Program, SandboxLimits, run
from mmgrpo.types import Sample, Score

from ..models.checkpoints import require_positive
from ..parsing.code_blocks import ExtractCode, extract_code
from ..parsing.explanations import comparison
from ..parsing.extraction import require_choice
from .parallel_scoring import score_in_parallel

Compare = Literal["set", "multiset", "list"]
Measure = Literal["rows", "columns", "runs"]

WORKER = Path(__file__).with_name("query_worker.py")

_FIELD = re.compile(r"\{(\w+)\}")


@final
class SqlExecution:
    """Reward: 1 if the SQL query of the answer returns the same as the reference query on a SQLite database, else 0.

    The database is the file ``database``, where ``{column}`` is replaced by a column of the row, such as
    ``dev_databases/{db_id}/{db_id}.sqlite``; without it an in-memory database is created by the script in column
    ``schema``. Both queries must be single read-only statements. They run in a sandbox without network and with limits;
    if that is not possible, nothing runs: see ``docs/how-to/sandbox.md``.

    Settings: ``measure`` is ``rows``, or ``columns`` (Jaccard index of the columns that both queries read) or ``runs``
    (1 if the query executes); ``compare`` the rows as a ``set`` (BIRD's execution accuracy), a ``multiset`` or a
    ``list`` (in order); ``runs`` is the score of a query that executes but returns other rows; ``extract`` as in
    ``code_tests``.
    Range: 0 to 1.   Units: seconds, MiB.
    Source: execution accuracy of BIRD (Li et al. 2023, arXiv:2305.03111), with ``compare: set``; columns and syntax as
    reward components: Reasoning-SQL (arXiv:2503.23157).
    Traps: a different query may return the same rows by chance on a small database; an empty result is correct if that
    of the reference is empty. A row whose reference query fails, times out or returns more than 100,000 rows is not
    scored.
    """

    concurrent = True
    deterministic = True

    def __init__(
        self,
        column: str = "query",
        database: str | None = None,
        schema: str = "schema",
        measure: Measure = "rows",
        compare: Compare = "multiset",
        runs: float = 0.0,
        extract: ExtractCode = "fenced",
        time_s: float = 30.0,
        memory_mb: int = 1024,
        concurrency: int = 4,
    ) -> None:
        if not 0 <= runs <= 1:
            raise ConfigError(f"SqlExecution.runs must be in [0, 1], got {runs}")
        self.column = column
        self._database = database
        self._schema = schema
        self._measure: Measure = require_choice("SqlExecution.measure", measure, Measure)
        self._compare: Compare = require_choice("SqlExecution.compare", compare, Compare)
        self._runs = runs
        self._extract: ExtractCode = require_choice("SqlExecution.extract", extract, ExtractCode)
        self._limits = SandboxLimits(time_s=time_s, memory_mb=memory_mb)
        self._concurrency = require_positive("SqlExecution.concurrency", concurrency)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return list(
            score_in_parallel(self._concurrency, self._score, samples, [self._request(sample) for sample in samples])
        )

    def _request(self, sample: Sample) -> dict[str, str] | None:
        """The reference query and its database."""
        columns = sample.prompt.columns
        query = columns.get(self.column)
        if sample.text is None or not isinstance(query, str):
            return None
        request = {"reference": query, "compare": self._compare, "database": "", "schema": ""}
        if self._database is None:
            schema = columns.get(self._schema)
            return request | {"schema": schema} if isinstance(schema, str) else None
        if any(columns.get(name) is None for name in _FIELD.findall(self._database)):
            return None
        path = Path(_FIELD.sub(lambda field: str(columns[field[1]]), self._database)).resolve()
        if not path.is_file():
            raise RewardError(f"there is no database {path}: set the key 'database' of sql_execution to its path")
        return request | {"database": str(path)}

    def _score(self, text: str, request: dict[str, str]) -> Score | None:
        query = extract_code(text, self._extract)
        if query is None:
            return Score(0.0, comparison(None, request["reference"], "no query"))
        program = Program(
            command=(*PYTHON, "query_worker.py", "request.json"),
            files={"query_worker.py": WORKER.read_text(), "request.json": json.dumps(request | {"query": query})},
            paths=(request["database"],) if request["database"] else (),
            limits=self._limits,
        )
        lines: list[Any] = run(program).output.decode().split("\n")
        if lines[0] != "{}":  # the reference query did not finish
            return None
        result = (
            json.loads(lines[1])
            if lines[1]
            else {"error": "it takes too long or too much", "same": False, "columns": 0.0}
        )
        why = result["error"] or (None if result.get("same") else "other rows")
        return Score(self._value(result), comparison(query, request["reference"], why))

    def _value(self, result: Mapping[str, Any]) -> float:
        if result["error"] is not None:
            return 0.0
        if self._measure == "runs":
            return 1.0
        return result["columns"] if self._measure == "columns" else 1.0 if result["same"] else self._runs
