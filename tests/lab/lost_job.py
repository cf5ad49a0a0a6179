"""A script of which rank 2 ends before it has met the others, as soon as a file is there. `torchrun lost_job.py FILE`."""

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist


def main() -> None:
    if os.environ["RANK"] == "2":
        while not Path(sys.argv[1]).exists():
            time.sleep(0.1)
        os._exit(1)
    dist.init_process_group("gloo")


if __name__ == "__main__":
    main()
