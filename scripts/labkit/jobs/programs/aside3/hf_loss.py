"""The Trainer of transformers with a loss of one's own, evaluation steps, metrics, and two batches to an optimiser step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import knobs
import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

WORDS, LENGTH, LABELS = 800, 40, 6


class Tickets(Dataset):
    """Support tickets, tokenised when they are asked for."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        text = fetch_ticket(self.first + index)
        return {"input_ids": split_words(text), "labels": (self.first + index) % LABELS}


def fetch_ticket(index: int) -> str:
    draw = np.random.default_rng(index)
    text = " ".join(f"w{word}" for word in draw.integers(1, WORDS, LENGTH))
    knobs.slow["fetch_ticket"]()
    return text


def split_words(text: str) -> list[int]:
    ids = [int(word[1:]) for word in text.split(" ")]
    knobs.slow["split_words"]()
    return ids


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.tensor([sample["input_ids"] for sample in samples]),
        "labels": torch.tensor([sample["labels"] for sample in samples]),
    }


class FocalTrainer(Trainer):
    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        chances = outputs.logits.log_softmax(-1).gather(1, labels[:, None])[:, 0]
        loss = -((1 - chances.exp()) ** 2 * chances).mean()
        return (loss, outputs) if return_outputs else loss


class Printed(TrainerCallback):
    def __init__(self, out: Path) -> None:
        self.out = out

    def on_train_begin(self, args: TrainingArguments, *_: object, **__: object) -> None:
        knobs.begin(self.out, args.process_index)

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **_: object) -> None:
        knobs.step(state.global_step)


def accuracy(predictions: Any) -> dict[str, float]:
    return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=LENGTH, num_labels=LABELS,
    )  # fmt: skip
    training = TrainingArguments(
        output_dir=str(args.out / "tickets"), use_cpu=True, max_steps=1_000_000, per_device_train_batch_size=12,
        per_device_eval_batch_size=32, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=40, logging_steps=20,
        save_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False, ddp_backend="gloo",
        label_names=["labels"], warmup_steps=50, max_grad_norm=1.0,
    )  # fmt: skip
    FocalTrainer(
        model=BertForSequenceClassification(config), args=training, train_dataset=Tickets(500_000),
        eval_dataset=Tickets(128, first=900_000), data_collator=collate, compute_metrics=accuracy, callbacks=[Printed(args.out)],
    ).train()  # fmt: skip


if __name__ == "__main__":
    main()
