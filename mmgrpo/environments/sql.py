"""A database as a tool: read-only queries on SQLite or DuckDB, in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, final, get_args

from mmgrpo.data.prompt_templates import fill_template
from mmgrpo.environment import Environment, SupportsCalls, Turn
from mmgrpo.environments.sandboxing import require_sandbox
from mmgrpo.environments.text_calls import CallFormat, SupportsTools, TextCalls, Tools, tools_of
from mmgrpo.environments.unused_settings import require_unset
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.system.extras import required
from mmgrpo.system.sandbox import PYTHON, START_S, Program, SandboxLimits, Session
from mmgrpo.tool_calls import AssistantMessage, bounded
from mmgrpo.types import Prompt

Engine = Literal["sqlite", "duckdb"]

WORKER = Path(__file__).with_name("sql_worker.py")

FORMATS: Mapping[str, CallFormat] = {
    "tag": CallFormat(opening="<sql>", closing="</sql>", result="<result>\n{result}\n</result>"),
    "fence": CallFormat(opening="```sql\n", closing="```", result="```result\n{result}\n```"),
}


@final
class SqlEnvironment(Environment, SupportsCalls, SupportsTools):
    """Answers SQL queries with the rows that they return; the database cannot be changed.

    The database is a file, whose path may contain columns of the row, or one in memory that the script in a column of
    the row creates. Queries run in the sandbox of ``docs/how-to/sandbox.md``, one statement each. Its turns have no
    rewards; ``sql_execution`` scores the final query.

    Source: executions between the steps of an answer as in ReEx-SQL (arXiv:2505.12768).
    """

    gives_rewards = False

    def __init__(
        self,
        database: str | None = None,
        schema: str | None = None,
        engine: Engine = "sqlite",
        call: str | Mapping[str, str] = "tag",
        answer_tag: str | None = None,
        describe: bool = True,
        max_rows: int = 20,
        max_chars: int = 4000,
        time_s: float = 10.0,
        memory_mb: int = 1024,
    ) -> None:
        """Checks that this machine can run the sandbox.

        Args:
            database: path of the database, such as ``databases/{db_id}.sqlite`` with the column ``db_id``; None: in
                memory.
            schema: column with the script that creates a database in memory; None: ``schema``.
            engine: ``sqlite`` or ``duckdb``.
            call: ``tag`` (``<sql>``), ``fence`` (a code block of Markdown), ``tool_call``, or ``opening``, ``closing``
                and ``result`` with ``{result}``.
            answer_tag: tag of the final answer; None: a turn without a call ends the conversation.
            describe: whether the description of the calls is appended to the prompt.
            max_rows: maximum number of rows of a result.
            max_chars: maximum length of a result.
            time_s: time limit of a query, in seconds.
            memory_mb: memory limit, in MiB.

        Raises:
            ConfigError: a setting is not allowed or would have no effect, or the machine cannot run the sandbox.
            MissingPackageError: ``duckdb`` is not installed.
        """
        if engine not in get_args(Engine) or max_rows < 1 or max_chars < 1:
            raise ConfigError(
                f"sql needs an engine of {', '.join(get_args(Engine))}, max_rows >= 1 and max_chars >= 1, got "
                f"{engine!r}, {max_rows} and {max_chars}"
            )
        if database is not None:
            require_unset("sql", "remove it, or database", schema=schema)
        if engine == "duckdb":
            required("duckdb", "the environment sql with engine: duckdb")
        require_sandbox("sql")
        self._settings = {"engine": engine, "max_rows": max_rows, "database": "", "schema": ""}
        self._limits = SandboxLimits(time_s=time_s, memory_mb=memory_mb, output_kb=64 << 10)
        self._database, self._schema, self._max_chars = database, schema or "schema", max_chars
        self._session: Session | None = None
        tools = tools_of(self.query, "To query the database", CallFormat.of(call, FORMATS), describe=describe)
        self._calls = TextCalls(tools, answer_tag=answer_tag, describe=describe)

    @property
    def tools(self) -> Tools:
        """The tool."""
        return self._calls.tools

    def reset(self, prompt: Prompt) -> Turn:
        """Opens the database of the row; the description of the calls.

        Raises: DataError if the row names no database, or it cannot be opened.
        """
        self._settings |= self._source_of(prompt)
        self._session = self._opened()
        return self._calls.reset(prompt)

    def step(self, text: str) -> Turn:
        """The rows of the calls in a text, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The rows of the calls of a turn."""
        return self._calls.respond(message)

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """None: the call that took too long still uses the database, so the conversation ends."""
        return None

    def close(self) -> None:
        """Closes the database."""
        if self._session is not None:
            self._session.close()

    def query(self, query: str) -> str:
        """Executes a SQL query that reads and returns its rows.

        Args:
            query: the query.

        Returns:
            The rows.
        """
        if self._session is None:
            self._session = self._opened()
        answer, ending = self._session.ask(json.dumps({"query": query}))
        if ending is not None:
            self._session = None  # the next query opens the database again
            return f"Error: the query takes longer than {self._limits.time_s:g} s, or too much memory"
        reply = json.loads(answer)
        return bounded(f"Error: {reply['error']}" if "error" in reply else _table(reply), self._max_chars)

    def _source_of(self, prompt: Prompt) -> dict[str, str]:
        """The database of a row."""
        if self._database is None:
            if not isinstance(script := prompt.columns.get(self._schema), str):
                raise DataError(
                    f"the row has no text in the column '{self._schema}': set 'schema' of sql, or 'database'"
                )
            return {"schema": script}
        path = Path(fill_template(prompt, self._database, {})).resolve()
        if not path.is_file():
            raise DataError(f"there is no database {path}: set 'database' of sql")
        return {"database": str(path)}

    def _opened(self) -> Session:
        program = Program(
            command=(*PYTHON, "sql_worker.py", "settings.json"),
            files={"sql_worker.py": WORKER.read_text(), "settings.json": json.dumps(self._settings)},
            paths=(self._settings["database"],) if self._settings["database"] else (),
            limits=self._limits,
        )
        session = Session(program)
        answer, ending = session.ask("", time_s=START_S)
        error = "it takes too long or too much memory" if ending else json.loads(answer)["error"]
        if error is None:
            return session
        session.close()
        raise DataError(f"the database of the row cannot be opened: {error}")


def _table(reply: Mapping[str, Any]) -> str:
    """The columns and rows as lines."""
    lines = [" | ".join(cells) for cells in (reply["columns"], *reply["rows"])]
    note = [f"[more rows are left out: at most {len(reply['rows'])} are listed]"] if reply["more"] else []
    return "\n".join([*lines, *([] if reply["rows"] else ["(no rows)"]), *note])
