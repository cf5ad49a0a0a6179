"""Rank 2 prepares something of its own before it comes to the others: `torchrun late_job.py SECONDS`."""

import os
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    if os.environ["RANK"] == "2":
        time.sleep(float(sys.argv[1]))
    dist.init_process_group("gloo")
    while True:
        time.sleep(0.1)
        dist.all_reduce(torch.ones(1000))


if __name__ == "__main__":
    main()
