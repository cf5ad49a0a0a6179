"""Three threads that fight for the GIL for a few seconds. Python 3.8 and later."""

import json
import threading
import time

END = time.monotonic() + 10


def spin():
    while time.monotonic() < END:
        pass


def main():
    for _ in range(2):
        threading.Thread(target=spin, daemon=True).start()
    print(json.dumps({}), flush=True)
    spin()


if __name__ == "__main__":
    main()
