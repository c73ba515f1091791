"""A server of chat completions on loopback with a list of replies, or of statuses."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatServer(ThreadingHTTPServer):
    """Sends the replies in order, and an error for a status; keeps the requests."""

    daemon_threads = True

    def __init__(self, replies: list[str | int]) -> None:
        super().__init__(("127.0.0.1", 0), ChatHandler)
        self.replies = replies
        self.requests: list[Any] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class ChatHandler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        reply = self.server.replies.pop(0)
        status, text = (reply, "") if isinstance(reply, int) else (200, reply)
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""
