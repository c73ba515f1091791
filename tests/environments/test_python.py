"""The Python of a conversation: its names stay, its limits end a call, and nothing is left of it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.environments.python import PythonEnvironment
from mmgrpo.errors import ConfigError
from mmgrpo.tool_calls import AssistantMessage, FunctionCall
from mmgrpo.types import Prompt
from tests.rewards.sandboxed import needs_sandbox

pytestmark = needs_sandbox


def block(code: str) -> str:
    return f"Let us see.\n```python\n{code}\n```"


def outputs(*codes: str, **settings: Any) -> list[str]:
    """The texts of the replies to calls of one conversation, without the fences."""
    environment = PythonEnvironment(**settings)
    try:
        replies = [environment.step(block(code)) for code in codes]
    finally:
        environment.close()
    assert not any(reply.done for reply in replies)
    return [reply.text.removeprefix("```output\n").removesuffix("\n```") for reply in replies]


def test_later_calls_share_names_and_show_last_values() -> None:
    assert outputs("import math\nx = 6", "print(x * 7)\nmath.factorial(5)", "x += 1", "x") == [
        "(no output)",
        "42\n120",
        "(no output)",
        "7",
    ]


def test_conversations_share_no_names() -> None:
    assert outputs("x = 1") == ["(no output)"]
    assert outputs("x", traceback_lines=1) == ["NameError: name 'x' is not defined"]


def test_errors_are_the_end_of_a_traceback_and_keep_the_names() -> None:
    code = "x = 3\nprint('before')\ndef f(n):\n    return 1 / n\nf(0)"
    assert outputs(code, "x", traceback_lines=1) == ["before\nZeroDivisionError: division by zero", "3"]
    (long,) = outputs(code, traceback_lines=3)
    assert "return 1 / n" in long
    assert len(long.splitlines()) == 4
    assert outputs("x = (", "exit(3)", traceback_lines=1) == ["SyntaxError: '(' was never closed", "SystemExit: 3"]


def test_outputs_are_cut_at_the_limit() -> None:
    assert outputs("print('ä' * 25, end='')", max_chars=10) == ["ä" * 10 + "\n[30 bytes are cut off]"]
    (endless,) = outputs("while True: print('x' * 1000)", max_chars=20, traceback_lines=1, time_s=20.0)
    assert endless.startswith("x" * 20 + "\n[")
    assert endless.endswith("space left on device")


@pytest.mark.nightly
def test_time_and_memory_limits_end_a_call_not_the_conversation() -> None:
    replies = outputs("x = 1", "while True: pass", "x", time_s=1.5, traceback_lines=1)
    lost = "Error: the code takes longer than 1.5 s; names that were defined are lost"
    assert replies == ["(no output)", lost, "NameError: name 'x' is not defined"]
    assert outputs("bytearray(4 << 30)", "1 + 1", traceback_lines=1) == ["MemoryError", "2"]
    ended = "Error: the interpreter ended (it takes more memory than allowed, or the code ends it); "
    assert outputs("import os; os._exit(1)", "2")[0] == f"{ended}names that were defined are lost"


def test_replies_that_imitate_the_interpreter_end_it() -> None:
    flood = "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'x' * 9_000_000)\n    except OSError: pass"
    (reply,) = outputs(flood, time_s=5.0)
    assert reply.startswith("Error: ")


def test_calls_are_read_in_each_format() -> None:
    tagged = PythonEnvironment(call="tag", answer_tag="answer")
    try:
        assert tagged.reset(Prompt("?")).text == (
            "To run Python code, write <code>...</code>.\nTo give the final answer, write <answer>...</answer>."
        )
        assert tagged.step("<code>a = 2</code> and <code>a ** 5</code>").text == (
            "<interpreter>\n(no output)\n</interpreter>\n<interpreter>\n32\n</interpreter>"
        )
        assert tagged.step("nothing").text.startswith("This turn is invalid. To run Python code")
        assert tagged.step("<answer>32</answer>").done
    finally:
        tagged.close()
    called = PythonEnvironment(call="tool_call")
    try:
        assert [tool["function"]["name"] for tool in called.reset(Prompt("?")).tools] == ["python"]
        call = json.dumps({"name": "python", "arguments": {"code": "3 * 4"}})
        reply = called.step(f"<tool_call>{call}</tool_call>")
        assert (reply.text, reply.role) == ("12", "tool")
        assert called.step("12").done
    finally:
        called.close()
    custom = PythonEnvironment(call={"opening": "[[", "closing": "]]", "result": "-> {result}"}, describe=False)
    try:
        assert custom.reset(Prompt("?")).text == ""
        assert custom.step("[[1 + 1]] and [[2").text == "-> 2"
        assert custom.step("It is 2.").done
    finally:
        custom.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"call": "braces"}, "call is one of fence, tag, tool_call"),
        ({"call": {"opening": "<c>", "closing": "</c>", "result": "none"}}, r"\{result\}"),
        ({"max_chars": 0}, "max_chars"),
        ({"time_s": 0}, "time_s > 0"),
    ],
)
def test_bad_settings_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PythonEnvironment(**settings)


def processes_with(text: str) -> list[int]:
    """Ids of processes with a text in their command line."""
    ids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (folder / "cmdline").read_bytes():
                ids.append(int(folder.name))
        except OSError:
            continue
    return ids


def test_no_process_outlives_its_conversation_or_its_thread() -> None:
    mark = f"{os.getpid()}7"
    environment = PythonEnvironment(max_chars=int(mark))
    environment.step(block("1"))
    assert processes_with(mark)
    environment.close()
    environment.close()
    abandoned = PythonEnvironment(max_chars=int(mark))
    thread = threading.Thread(target=abandoned.step, args=(block("1"),))
    thread.start()
    thread.join()
    wait = threading.Event()
    for _ in range(100):
        if not processes_with(mark):
            break
        wait.wait(0.05)
    assert processes_with(mark) == []
    abandoned.close()


def test_calls_that_the_response_template_reads_are_run() -> None:
    environment = PythonEnvironment(call="tool_call", answer_tag="answer")
    opening = environment.reset(Prompt("How much is it?"))
    assert opening.text == "To give the final answer, write <answer>...</answer>."
    assert [tool["function"]["name"] for tool in opening.tools] == ["python"]
    try:
        message = AssistantMessage("a call in a format of the model", [FunctionCall("python", {"code": "6 * 7"})])
        assert environment.respond(message).text == "42"
    finally:
        environment.close()
    assert environment.respond(AssistantMessage("<answer>42</answer>")).done
