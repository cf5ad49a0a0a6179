"""A small GPT-2 trained with the Trainer of transformers."""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import knobs
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

VOCABULARY, LENGTH = 512, 32


class Lines(Dataset):
    """Lines of a corpus, read by the loader's workers."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> str:
        return read_line(index)


def read_line(index: int) -> str:
    line = "".join(random.Random(index).choices("abcdefghij klmnopqrst", k=4 * LENGTH))
    knobs.slow["read_line"]()
    return line


def tokenize(line: str) -> list[int]:
    tokens = [(hash(line[place : place + 4]) & 0xFFFF) % VOCABULARY for place in range(0, 4 * LENGTH, 4)]
    knobs.slow["tokenize"]()
    return tokens


class LineTrainer(Trainer):
    """Tokenises in the training process: the tokeniser's statistics are logged."""

    def compute_loss(self, model: Any, inputs: list[str], *args: Any, **kwargs: Any) -> Any:
        ids = torch.tensor([tokenize(line) for line in inputs["lines"]])
        return super().compute_loss(model, {"input_ids": ids, "labels": ids}, *args, **kwargs)


def collate(lines: list[str]) -> dict[str, list[str]]:
    return {"lines": lines}


class StepTimes(TrainerCallback):
    def __init__(self, out: Path) -> None:
        self.out = out

    def on_train_begin(self, args: TrainingArguments, *_: object, **__: object) -> None:
        knobs.begin(self.out, args.process_index)

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **_: object) -> None:
        knobs.step(state.global_step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=96, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    training = TrainingArguments(
        output_dir=str(args.out / "trainer"), use_cpu=True, max_steps=1_000_000, per_device_train_batch_size=16, logging_steps=10,
        save_strategy="steps", save_steps=200, save_total_limit=1, report_to=[], disable_tqdm=True, dataloader_num_workers=1,
        remove_unused_columns=False, ddp_backend="gloo",
    )  # fmt: skip
    trainer = LineTrainer(
        model=GPT2LMHeadModel(config), args=training, train_dataset=Lines(), data_collator=collate,
        callbacks=[StepTimes(args.out)],
    )  # fmt: skip
    trainer.train()


if __name__ == "__main__":
    main()
