"""TRL's GRPOTrainer on a small Llama made here, rewards in Python; accelerate launch."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import knobs
import torch
from aside6.sft import Lines, llama, tokenizer
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def grade(answer: str) -> float:
    words = answer.split()
    knobs.slow["grade"]()
    return sum(one != other for one, other in itertools.pairwise(words)) / max(len(words), 1)


def brevity(answer: str) -> float:
    knobs.slow["brevity"]()
    return -len(answer) / 100


def variety(completions: list[str], **_: object) -> list[float]:
    return [grade(answer) for answer in completions]


def shortness(completions: list[str], **_: object) -> list[float]:
    return [brevity(answer) for answer in completions]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    prompts = [f"question {number % 13} of the quick brown fox" for number in range(4096)]
    settings = GRPOConfig(
        output_dir=str(args.out / "model"), per_device_train_batch_size=8, num_generations=4, max_completion_length=8,
        max_steps=1_000_000, logging_steps=10, save_strategy="no", report_to=[], use_cpu=True, bf16=False,
        gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=llama(), args=settings, train_dataset=Dataset.from_dict({"prompt": prompts}), processing_class=tokenizer(),
        reward_funcs=[variety, shortness], callbacks=[Lines(args.out)],
    )  # fmt: skip
    trainer.train()


if __name__ == "__main__":
    main()
