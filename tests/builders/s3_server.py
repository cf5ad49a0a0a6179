"""A real S3 server for tests: moto's, in a process and an environment of its own. It forgets everything when it ends."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ENVIRONMENT = Path(__file__).resolve().parents[2] / ".venv/s3"  # scripts/setup --lab makes it
INSTALLED = _ENVIRONMENT / "installed"
KEY, SECRET = "AKIAOPENSESAME0000X", "wJalr-not-a-secret-of-anybody"
BUCKET = "windows"
_SERVE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def serving() -> Iterator[str]:
    """`host:port` of a server with the bucket `windows`."""
    server = subprocess.Popen(
        [_ENVIRONMENT / "bin/python", "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )  # fmt: skip
    try:
        assert server.stdout is not None
        address = f"127.0.0.1:{int(server.stdout.readline())}"
        for _ in range(100):
            try:
                request = urllib.request.Request(f"http://{address}/{BUCKET}", method="PUT")
                urllib.request.urlopen(request, timeout=5).close()
                break
            except urllib.error.URLError:
                time.sleep(0.05)
        yield address
    finally:
        server.kill()
        server.wait()


def uri(address: str, path: str) -> str:
    """A URI with credentials in it, which must never be seen again."""
    return f"s3://{KEY}:{SECRET}@{BUCKET}/{path}?endpoint_override={address}&scheme=http&region=us-east-1"
