"""A generation server: answers prompts with as many tokens as they ask for, and takes new weights.

    python server.py PORT [--slow SECONDS] [--slow-weights SECONDS]

POST /generate with a JSON list of lengths: all sequences grow by one token at a time, as in a
server with continuous batching, so that a request lasts as long as its longest sequence. POST
/weights with bytes: the new weights. `--slow`: more seconds for each token; `--slow-weights`: more
seconds for each megabyte of weights. Knows nothing of rankscope.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN_S = 0.002
_PIECE = 1 << 20


def decode(lengths: list[int], slow_s: float) -> list[str]:
    """Generate one sequence per length."""
    texts = [""] * len(lengths)
    for position in range(max(lengths, default=0)):
        time.sleep(TOKEN_S)  # the model, on a device
        if slow_s:
            slow_sampler(slow_s)
        for number, length in enumerate(lengths):
            if position < length:
                texts[number] += f"{sample(number, position)} "
    return texts


def sample(number: int, position: int) -> str:
    """Choose a token."""
    return hashlib.sha256(f"{number}.{position}".encode()).hexdigest()[:6]


def slow_sampler(seconds: float) -> None:
    """Take longer for a token."""
    time.sleep(seconds)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection, for as long as its client holds it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    slow_s = 0.0
    slow_weights_s = 0.0

    def do_POST(self) -> None:
        """Generate, or take weights."""
        left = int(self.headers["Content-Length"])
        if self.path == "/weights":
            while left > 0:
                left -= len(self.rfile.read(min(left, _PIECE)))
                time.sleep(self.slow_weights_s)
            self._answer(b"{}")
        else:
            self._answer(json.dumps(decode(json.loads(self.rfile.read(left)), self.slow_s)).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--slow-weights", type=float, default=0.0)
    given = parser.parse_args()
    Handler.slow_s, Handler.slow_weights_s = given.slow, given.slow_weights
    ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
