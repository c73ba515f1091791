"""An OpenAI-compatible endpoint of the standard library on loopback, whose answers depend on the request."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """Answers by what the prompt says, and keeps what it was asked.

    With ``says`` it answers what that makes of a prompt, and with ``first`` so likely the reply begins.
    """

    daemon_threads = True

    def __init__(
        self, says: Callable[[str], str] | None = None, first: Callable[[str], Mapping[str, float]] | None = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.says = says
        self.first = first
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.lock = threading.Lock()
        self.tries: dict[str, int] = {}
        self.under_way = self.most_under_way = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = body["messages"][-1]["content"]
        text = content if isinstance(content, str) else content[-1]["text"]
        with self.server.lock:
            self.server.requests.append(body)
            self.server.headers.append(dict(self.headers))
            attempt = self.server.tries[text] = self.server.tries.get(text, 0) + 1
            self.server.under_way += 1
            self.server.most_under_way = max(self.server.most_under_way, self.server.under_way)
        time.sleep(1.0 if "slow" in text else 0.05 if self.server.says is None else 0.0)
        with self.server.lock:
            self.server.under_way -= 1
        if body.get("logprobs") and self.server.first is not None:
            self.weighed(self.server.first(text))
        elif self.server.says is not None:
            self.send_text(self.server.says(text))
        else:
            self.answer(text, attempt)

    def weighed(self, first: Mapping[str, float]) -> None:
        """Log-probabilities of the tokens that the reply may begin with."""
        top = [{"token": token, "logprob": math.log(prob)} for token, prob in first.items()]
        choice = {"message": {"content": "."}, "logprobs": {"content": [{"top_logprobs": top}]}}
        self.reply(200, json.dumps({"choices": [choice]}).encode())

    def answer(self, text: str, attempt: int) -> None:
        if self.path != "/v1/chat/completions" or "forbidden" in text:
            self.reply(403, b"no")
        elif "redirect" in text:
            self.reply(307, b"", {"Location": f"http://127.0.0.1:{self.server.server_port}/elsewhere"})
        elif "broken" in text or ("flaky" in text and attempt < 3):
            self.reply(503, b"busy", {"Retry-After": "0"})
        elif "cut" in text and attempt == 1:
            self.close_connection = True
            self.connection.close()
        elif "garbage" in text:
            self.reply(200, b"<html>")
        elif "huge" in text:
            self.reply(200, b" " * (2**22 + 10))
        elif "empty" in text:
            self.send_text(None)
        else:
            self.send_text("I cannot say." if "mute" in text else "Score: 4")

    def send_text(self, content: str | None) -> None:
        self.reply(200, json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode())

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""
