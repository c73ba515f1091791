"""A server of the protocol of Search-R1's retriever, on loopback."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mmgrpo.environments.search import Corpus


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


class RetrievalServer(ThreadingHTTPServer):
    """Serves a corpus by the protocol of Search-R1's retrieval_server.py; ``statuses`` are sent before it does, and
    every reply after ``delay_s``.
    """

    daemon_threads = True

    def __init__(self, corpus: Path, statuses: list[int], body: bytes | None = None, delay_s: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), RetrievalHandler)
        self.corpus, self.statuses, self.body, self.delay_s = Corpus(corpus), statuses, body, delay_s
        self.requests: list[Any] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/retrieve"


class RetrievalHandler(BaseHTTPRequestHandler):
    server: RetrievalServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        scored = [
            [
                {"document": {"contents": f"{document.title}\n{document.text}"}, "score": 1.0 / rank}
                for rank, document in enumerate(self.server.corpus.search(query, request["topk"]), 1)
            ]
            for query in request["queries"]
        ]
        time.sleep(self.server.delay_s)
        body = self.server.body or json.dumps({"result": scored}).encode()
        self.send_response(status if self.path == "/retrieve" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""
