"""TRL's SFTTrainer, adapters of LoRA on a small Llama made here, a collator of one's own; accelerate launch."""

from __future__ import annotations

import argparse
from pathlib import Path

import knobs
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

VOCABULARY = (
    "<pad>", "<unk>", "<s>", "</s>", "the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "question", "answer", "of",
    *map(str, range(40)),
)  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        padding_side="left",
    )  # fmt: skip


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(VOCABULARY), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, bos_token_id=2, eos_token_id=3,
        )
    )  # fmt: skip


class Lines(TrainerCallback):
    def __init__(self, out: Path) -> None:
        self.out = out

    def on_train_begin(self, args: object, state: object, *_: object, **__: object) -> None:
        knobs.begin(self.out, args.process_index)

    def on_step_end(self, args: object, state: object, *_: object, **__: object) -> None:
        knobs.step(state.global_step)


def mask_prompt(ids: list[int]) -> list[int]:
    labels = [-100] * 4 + ids[4:]
    knobs.slow["mask_prompt"]()
    return labels


def pad(ids: list[int], length: int, filler: int) -> list[int]:
    knobs.slow["pad"]()
    return ids + [filler] * (length - len(ids))


def collate(samples: list[dict]) -> dict[str, torch.Tensor]:
    longest = max(len(sample["input_ids"]) for sample in samples)
    labels = [mask_prompt(sample["input_ids"]) for sample in samples]
    return {
        "input_ids": torch.tensor([pad(sample["input_ids"], longest, 0) for sample in samples]),
        "attention_mask": torch.tensor([pad([1] * len(sample["input_ids"]), longest, 0) for sample in samples]),
        "labels": torch.tensor([pad(each, longest, -100) for each in labels]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    texts = [
        f"question {number % 13} of the quick brown fox answer {number % 7} over the lazy dog" for number in range(4096)
    ]
    settings = SFTConfig(
        output_dir=str(args.out / "model"), per_device_train_batch_size=16, max_steps=1_000_000, logging_steps=10,
        save_strategy="no", report_to=[], use_cpu=True, dataset_text_field="text", max_length=64, gradient_checkpointing=False,
        bf16=False, dataloader_num_workers=0, disable_tqdm=True,
    )  # fmt: skip
    trainer = SFTTrainer(
        model=llama(), args=settings, train_dataset=Dataset.from_dict({"text": texts}), processing_class=tokenizer(),
        data_collator=collate, peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        callbacks=[Lines(args.out)],
    )  # fmt: skip
    trainer.train()


if __name__ == "__main__":
    main()
