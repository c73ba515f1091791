"""Rewards for database queries: what they give is compared with what the right one gives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.types import Sample, Score

from ..models.checkpoints import require_positive
from ..parsing.code_blocks import ExtractCode, code_in
from ..parsing.explanations import compared
from ..parsing.extraction import require_choice
from .parallel_scoring import score_in_parallel
from .sandbox import PYTHON, Program, SandboxLimits, run

Compare = Literal["set", "multiset", "list"]
Measure = Literal["rows", "columns", "runs"]

WORKER = Path(__file__).with_name("query_worker.py")

_FIELD = re.compile(r"\{(\w+)\}")


@final
class SqlExecution:
    """Reward: 1 if the answer's SQL query gives what the row's right query gives on its SQLite database, else 0.

    The database is a file, ``database``, in which ``{column}`` stands for a column of the row, such as
    ``dev_databases/{db_id}/{db_id}.sqlite``; or where there is none is made in memory by the script in column
    ``schema``. Both queries may only read and are one statement each. They run in a sandbox, without network and within
    the limits, or not at all: see ``docs/sandbox.md``.

    Settings: ``measure`` is ``rows``, or ``columns`` (how many of the columns that the two read are common to both,
    Jaccard) or ``runs`` (1 if the query can be run, whatever it gives); ``compare`` the rows as a ``set`` (BIRD's
    execution accuracy), a ``multiset`` (a row as often as it stands there) or a ``list`` (in their order); ``runs`` is
    what a query scores that can be run and gives other rows; ``extract`` as in ``code_tests``.
    Range: 0 to 1.   Units: seconds, MiB.
    Source: execution accuracy of BIRD (Li et al. 2023, arXiv:2305.03111), with ``compare: set``; columns and syntax
    as parts of a reward: Reasoning-SQL (arXiv:2503.23157).
    Traps: another query may give the same rows by chance on a small database; an empty result is right where the
    reference's is empty. A row whose own query fails, takes too long or gives more than 100,000 rows is not scored.
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
            raise ConfigError(f"SqlExecution.runs must lie in [0, 1], got {runs}")
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
        """The right query, and where its database is."""
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
            raise RewardError(f"there is no database {path}: set the key 'database' of sql_execution to where it is")
        return request | {"database": str(path)}

    def _score(self, text: str, request: dict[str, str]) -> Score | None:
        query = code_in(text, self._extract)
        if query is None:
            return Score(0.0, compared(None, request["reference"], "no query"))
        program = Program(
            command=(*PYTHON, "query_worker.py", "request.json"),
            files={"query_worker.py": WORKER.read_text(), "request.json": json.dumps(request | {"query": query})},
            paths=(request["database"],) if request["database"] else (),
            limits=self._limits,
        )
        lines: list[Any] = run(program).output.decode().split("\n")
        if lines[0] != "{}":  # the reference was not run to its end
            return None
        result = (
            json.loads(lines[1])
            if lines[1]
            else {"error": "it takes too long or too much", "same": False, "columns": 0.0}
        )
        why = result["error"] or (None if result.get("same") else "other rows")
        return Score(self._value(result), compared(query, request["reference"], why))

    def _value(self, result: Mapping[str, Any]) -> float:
        if result["error"] is not None:
            return 0.0
        if self._measure == "runs":
            return 1.0
        return result["columns"] if self._measure == "columns" else 1.0 if result["same"] else self._runs
