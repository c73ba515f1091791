"""Relays connections of ``--port`` to the port of the first argument: a server as a process that starts at once."""

from __future__ import annotations

import argparse
import socket
import threading
from contextlib import suppress


def pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("upstream", type=int)
    parser.add_argument("--port", type=int)
    ports, _ = parser.parse_known_args()
    with socket.create_server(("127.0.0.1", ports.port)) as listener:
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", ports.upstream))
            for ends in ((client, server), (server, client)):
                threading.Thread(target=pump, args=ends, daemon=True).start()
