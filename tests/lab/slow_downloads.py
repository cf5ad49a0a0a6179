"""A server whose downloads do not end in time."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Iterator


class Trickle(http.server.BaseHTTPRequestHandler):
    """A download that does not end in time."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100000000")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"x")
                time.sleep(0.3)
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def server() -> Iterator[int]:
    """Its port."""
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Trickle)
    running.daemon_threads = True
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield running.server_address[1]
    finally:
        running.shutdown()
        running.server_close()
