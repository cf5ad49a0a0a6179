"""The pictures of the README: the beginning of a page, down to its heat map, in light and in dark.

scripts/demo                                  # leaves a page
scripts/pictures PAGE.html [FOLDER]           # fault-light.png, fault-dark.png
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from testkit import chromium

_FOLDER = Path(__file__).resolve().parents[2] / "diagnose/face/report/pictures"
_WIDTH = 1000
_BELOW = 16  # pixels under the heat map


def main(arguments: list[str]) -> int:
    """The exit code: 64 wrong usage, 69 without a browser."""
    if len(arguments) not in (1, 2):
        print("usage: scripts/pictures PAGE.html [FOLDER]", file=sys.stderr)
        return 64
    if chromium.PROGRAM is None:
        print("pictures: no chromium here (scripts/setup --lab)", file=sys.stderr)
        return 69
    page, folder = Path(arguments[0]).resolve(), Path(arguments[1]) if len(arguments) > 1 else _FOLDER
    with tempfile.TemporaryDirectory(prefix="pictures-") as own, chromium.browser(Path(own)) as shown:
        for scheme in ("light", "dark"):
            shown.size(_WIDTH, 900)
            shown.scheme(scheme)
            shown.open(page)
            bottom = shown.value("document.querySelector('#heat').parentNode.getBoundingClientRect().bottom")
            shown.size(_WIDTH, int(bottom) + _BELOW)
            shot = shown.ask("Page.captureScreenshot", format="png")
            (folder / f"fault-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
