"""An entry point as configuration frameworks make them: a decorator calls the job, which makes its parts from names; compiled."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

DEFAULTS = {
    "data._target_": "Spectra", "data.length": "400", "loader.batch_size": "24", "loader.num_workers": "1",
    "model._target_": "Denoiser", "model.width": "256", "optim.lr": "0.001", "trainer._target_": "Loop",
    "trainer.log_every": "30", "out": "",
}  # fmt: skip
Settings = dict[str, str]


def configured(task: Callable[[Settings], None]) -> Callable[[], None]:
    @functools.wraps(task)
    def entry() -> None:
        given = dict(word.split("=", 1) for word in sys.argv[1:])
        _run(task, {**DEFAULTS, **given})

    return entry


def _run(task: Callable[[Settings], None], settings: Settings) -> None:
    _call_with_logging(functools.partial(task, settings))


def _call_with_logging(job: Callable[[], None]) -> None:
    try:
        job()
    except KeyboardInterrupt:
        print("interrupted", flush=True)


def section(settings: Settings, name: str) -> Settings:
    return {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(name + ".")}


def instantiate(settings: Settings, **more: Any) -> Any:
    kind = globals()[settings["_target_"]]
    return kind(**{key: int(value) for key, value in settings.items() if key != "_target_"}, **more)


class Spectra(Dataset):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return 2_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.read_spectrum(index)

    def read_spectrum(self, index: int) -> torch.Tensor:
        spectrum = torch.rand(self.length, generator=torch.Generator().manual_seed(index))
        knobs.slow["read_spectrum"]()
        return spectrum


def add_peaks(spectrum: torch.Tensor) -> torch.Tensor:
    spectrum = spectrum.clone()
    spectrum[torch.randint(len(spectrum), (5,))] += 3.0
    knobs.slow["add_peaks"]()
    return spectrum


class Denoiser(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.LazyLinear(width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 400)
        )

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        return self.net(noisy)


class Loop:
    def __init__(self, log_every: int, model: nn.Module, lr: float, out: Path) -> None:
        model(torch.zeros(1, 400))
        self.model = torch.compile(DistributedDataParallel(model))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr)
        self.log_every, self.out = log_every, out

    def fit(self, loader: DataLoader) -> None:
        knobs.begin(self.out, dist.get_rank())
        for done, batch in enumerate(loader, 1):
            self.advance(batch, done)

    def advance(self, clean: torch.Tensor, done: int) -> None:
        noisy = torch.stack([add_peaks(spectrum) for spectrum in clean])
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(noisy), clean)
        loss.backward()
        self.optimizer.step()
        if done % self.log_every == 0 and dist.get_rank() == 0:
            print(f"{done} {loss.item():.5f}", flush=True)
        knobs.step(done)


@configured
def main(settings: Settings) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    out = Path(settings["out"])
    knobs.follow(out, dist.get_rank())
    data = instantiate(section(settings, "data"))
    loader = DataLoader(data, **{key: int(value) for key, value in section(settings, "loader").items()})
    model = instantiate(section(settings, "model"))
    trainer = instantiate(section(settings, "trainer"), model=model, lr=float(settings["optim.lr"]), out=out)
    trainer.fit(loader)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
