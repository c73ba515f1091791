"""Python as a tool: programs of the model run in the sandbox, and the names of a conversation stay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import final

from mmgrpo.environment import Environment, SupportsCalls, Turn
from mmgrpo.environments.sandboxing import require_sandbox
from mmgrpo.environments.text_calls import CallFormat, SupportsTools, TextCalls, Tools, tools_of
from mmgrpo.errors import ConfigError
from mmgrpo.system.sandbox import PYTHON, Program, SandboxLimits, Session, SessionEnding
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.types import Prompt

WORKER = Path(__file__).with_name("python_worker.py")

FORMATS: Mapping[str, CallFormat] = {
    "fence": CallFormat(opening="```python\n", closing="```", result="```output\n{result}\n```"),
    "tag": CallFormat(opening="<code>", closing="</code>", result="<interpreter>\n{result}\n</interpreter>"),
}

REASONS: Mapping[SessionEnding, str] = {
    "ended": "the interpreter ended (it takes more memory than allowed, or the code ends it)",
    "late": "the code takes longer than {time_s:g} s",
    "too much output": "the output is too long",
}


@final
class PythonEnvironment(Environment, SupportsCalls, SupportsTools):
    """Runs the Python code of a turn; later calls of a conversation share the names of earlier ones.

    The code runs in the sandbox of ``docs/how-to/sandbox.md``, which starts with the first call. The result is the
    output, the value of a last expression as in a notebook, and the end of a traceback. After a call that takes too
    long or ends the interpreter, the next call starts a new interpreter, and the result says so. Its turns have no
    rewards.

    Source: code-fence calls and outputs as in ToRL (arXiv:2503.23383), tags as in ReTool (arXiv:2504.11536).
    """

    gives_rewards = False

    def __init__(
        self,
        call: str | Mapping[str, str] = "fence",
        answer_tag: str | None = None,
        describe: bool = True,
        time_s: float = 10.0,
        memory_mb: int = 1024,
        max_chars: int = 4000,
        traceback_lines: int = 4,
    ) -> None:
        """Checks that this machine can run the sandbox.

        Args:
            call: ``fence`` (a code block of Markdown), ``tag`` (``<code>``), ``tool_call``, or ``opening``, ``closing``
                and ``result`` with ``{result}``.
            answer_tag: tag of the final answer; None: a turn without a call ends the conversation.
            describe: whether the description of the calls is appended to the prompt.
            time_s: time limit of a call, in seconds.
            memory_mb: memory limit of a process, in MiB.
            max_chars: maximum length of an output.
            traceback_lines: number of last lines of a traceback.

        Raises:
            ConfigError: a setting is not allowed, or the machine cannot run the sandbox.
        """
        if max_chars < 1 or traceback_lines < 1:
            raise ConfigError(f"max_chars and traceback_lines must be at least 1, got {max_chars}, {traceback_lines}")
        require_sandbox("python")
        self._program = Program(
            command=(*PYTHON, "python_worker.py", str(max_chars), str(traceback_lines)),
            files={"python_worker.py": WORKER.read_text()},
            limits=SandboxLimits(time_s=time_s, memory_mb=memory_mb, output_kb=64 + max_chars // 32),
        )
        self._session: Session | None = None
        self._note = ""
        tools = tools_of(self.python, "To run Python code", CallFormat.of(call, FORMATS), describe=describe)
        self._calls = TextCalls(tools, answer_tag=answer_tag, describe=describe)

    @property
    def tools(self) -> Tools:
        """The tool."""
        return self._calls.tools

    def reset(self, prompt: Prompt) -> Turn:
        """The description of the calls."""
        return self._calls.reset(prompt)

    def step(self, text: str) -> Turn:
        """The outputs of the calls in a text, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The outputs of the calls of a turn."""
        return self._calls.respond(message)

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """None: the call that took too long still uses the interpreter, so the conversation ends."""
        return None

    def close(self) -> None:
        """Kills the interpreter."""
        if self._session is not None:
            self._session.close()

    def python(self, code: str) -> str:
        """Runs Python code and returns its output; names stay defined for later calls.

        Args:
            code: the code.

        Returns:
            The output.
        """
        if self._session is None:
            self._session = Session(self._program)
        answer, ending = self._session.ask(json.dumps({"code": code}))
        if ending is not None:
            self._session = None
            reason = REASONS[ending].format(time_s=self._program.limits.time_s)
            return f"Error: {reason}; names that were defined are lost"
        reply = json.loads(answer)
        cut = f"\n[{reply['num_cut']} bytes are cut off]" if reply["num_cut"] else ""
        parts = (f"{reply['output'].rstrip()}{cut}", reply["error"])
        return "\n".join(filter(None, parts)) or "(no output)"
