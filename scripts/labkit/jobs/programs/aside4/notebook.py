"""A notebook, run from top to bottom by nbclient: its last cell starts two ranks by accelerate's notebook_launcher."""

from __future__ import annotations

import argparse
from pathlib import Path

import nbclient
import nbformat

IMPORTS = """
import os, random
os.environ["ACCELERATE_USE_CPU"] = "1"
from pathlib import Path
import knobs
import torch
from accelerate import Accelerator, notebook_launcher
from torch import nn
"""
DATA = """
def read_patient(number):
    visits = [random.Random(number * 31 + day).gauss(0, 1) for day in range(64)]
    knobs.slow["read_patient"]()
    return visits

def fill_missing(visits):
    filled = [visit if abs(visit) < 2 else 0.0 for visit in visits]
    knobs.slow["fill_missing"]()
    return torch.tensor(filled)

def make_batch(rank, number):
    return torch.stack([fill_missing(read_patient(48 * number + place + rank)) for place in range(48)])
"""
TRAINING = """
def train(out):
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    model = nn.Sequential(nn.Linear(64, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 64))
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 1e-4))
    knobs.begin(out, rank)
    for number in range(1, 10_000_000):
        visits = make_batch(rank, number)
        loss = nn.functional.mse_loss(model(visits), visits)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if number % 40 == 0:
            mean = accelerator.gather(loss.detach()).mean()
            accelerator.print(number, float(mean))
        knobs.step(number)
"""
LAUNCH = "notebook_launcher(train, (Path({out!r}),), num_processes={ranks}, use_port={port!r})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--port", required=True)
    args = parser.parse_args()
    launch = LAUNCH.format(out=str(args.out), ranks=args.workers, port=args.port)
    cells = [IMPORTS, DATA, TRAINING, launch]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3").execute()


if __name__ == "__main__":
    main()
