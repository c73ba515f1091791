"""Whole training steps of a language policy against TRL's GRPOTrainer: same model, data, group, lengths and dtype.

    python -m benchmarks.language [--case image|text] [--rounds 2] [--steps 3]

Each round runs one process of ours and one of TRL's, A B A B; a step is the time between two calls of the reward, so it
holds everything: generation, scoring, the update. The first interval of a process is left out.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from tests.tiny import chat_tokenizers, processors

SIDES = ("mmgrpo", "trl")
PROMPTS, GROUP_SIZE, VOCABULARY, LEARNING_RATE = 2, 8, 16384, 1e-5
IMAGE_SIDE = 224  # pixels; a token for 8 x 8, so 784 tokens
TEXT: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "vocab_size": VOCABULARY,
}


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured.

    Attributes:
        words: of the prompt's text.
        completion: tokens of every completion; the model ends none by itself.
        shows: whether a prompt has a picture.
    """

    words: int
    completion: int
    shows: bool


CASES = {"image": Case(10, 128, True), "text": Case(52, 128, False)}


def model_and_processor(case: Case) -> tuple[Any, Any]:
    """The same random weights on both sides."""
    torch.manual_seed(0)
    if not case.shows:
        tokenizer: Any = chat_tokenizers.qwen()
        model = LlamaForCausalLM(LlamaConfig(**TEXT, eos_token_id=tokenizer.eos_token_id, pad_token_id=0))
        return model, tokenizer
    processor: Any = processors.qwen2_5_vl()
    processor.image_processor.size = {"shortest_edge": 64, "longest_edge": IMAGE_SIDE**2}
    tokenizer = processor.tokenizer
    ids = tokenizer.get_vocab()
    vision = {
        "depth": 4,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_heads": 4,
        "patch_size": processors.PATCH,
        "spatial_merge_size": processors.MERGE,
        "out_hidden_size": TEXT["hidden_size"],
        "window_size": 32,
        "fullatt_block_indexes": [3],
    }
    text = TEXT | {
        "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12]},
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    return Qwen2_5_VLForConditionalGeneration(config), processor


def questions(case: Case, number: int) -> list[tuple[str, Image.Image]]:
    """Different texts of the same length, each with a picture of its own."""
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(chat_tokenizers.WORDS, case.words)) for _ in range(number)]
    pixels = draw.integers(0, 255, (number, IMAGE_SIDE, IMAGE_SIDE, 3), dtype=np.uint8)
    return [(text, Image.fromarray(picture)) for text, picture in zip(texts, pixels, strict=True)]


class Clock:
    """A reward that says when it was called, and gives every sample another score."""

    __name__ = "clock"

    def __init__(self) -> None:
        self.called: list[float] = []
        self.tokens: list[int] = []

    def __call__(self, prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[float]:
        self.called.append(time.perf_counter())
        self.tokens += [len(ids) for ids in completion_ids]
        return [float(row % 7) for row in range(len(completions))]


def run_ours(case: Case, steps: int, clock: Clock, folder: str) -> None:
    """Our trainer, whole."""
    from mmgrpo.policies.language import LanguagePolicy

    from mmgrpo.training.trainer import Trainer
    from mmgrpo.types import Prompt

    model, processor = model_and_processor(case)
    policy = LanguagePolicy(model, processor, {"max_new_tokens": case.completion, "update_tokens": 1 << 16})
    prompts = [Prompt(text, images=[image] if case.shows else []) for text, image in questions(case, 8)]
    config = {
        "output": folder,
        "steps": steps,
        "rollout": {"prompts_per_step": PROMPTS, "group_size": GROUP_SIZE},
        "update": {"optimizer": {"lr": LEARNING_RATE}},
        "runtime": {"device": "cpu"},
    }
    Trainer(policy, {"clock": clock}, prompts, config).train()


def run_trl(case: Case, steps: int, clock: Clock, folder: str) -> None:
    """TRL's trainer with its default generation."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, processor = model_and_processor(case)
    rows = questions(case, 8)
    columns: dict[str, Any] = {"prompt": [[{"role": "user", "content": text}] for text, _ in rows]}
    if case.shows:
        columns["image"] = [image for _, image in rows]
    arguments = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        report_to=[],
        gradient_checkpointing=False,
        save_strategy="no",
        max_steps=steps,
        per_device_train_batch_size=PROMPTS * GROUP_SIZE,
        num_generations=GROUP_SIZE,
        max_completion_length=case.completion,
        learning_rate=LEARNING_RATE,
        loss_type="grpo",
        beta=0.0,
        disable_tqdm=True,
    )
    reward: Any = clock
    GRPOTrainer(
        model, reward, args=arguments, train_dataset=Dataset.from_dict(columns), processing_class=processor
    ).train()


def worker(side: str, case: Case, steps: int) -> None:
    """Prints what one process measured, as JSON."""
    torch.set_num_threads(1)
    clock = Clock()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        (run_ours if side == "mmgrpo" else run_trl)(case, steps, clock, folder)
    intervals = [b - a for a, b in zip(clock.called, clock.called[1:], strict=False)]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    found = {"seconds": intervals[1:], "peak_mb": grown / 1024, "mean_tokens": float(np.mean(clock.tokens))}
    print(json.dumps(found))


def measured(side: str, case: str, steps: int) -> dict[str, Any]:
    """What a process of its own measured."""
    command = [sys.executable, "-m", "benchmarks.language", "--worker", side, "--case", case, "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(case: str, rounds: int, steps: int) -> None:
    """Runs both sides by turns and prints a row of the table."""
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    peaks: dict[str, list[float]] = {side: [] for side in SIDES}
    ratios: list[float] = []
    for _ in range(rounds):
        found = {side: measured(side, case, steps) for side in SIDES}
        for side in SIDES:
            seconds[side] += found[side]["seconds"]
            peaks[side].append(found[side]["peak_mb"])
        ratios.append(median(found["trl"]["seconds"]) / median(found["mmgrpo"]["seconds"]))
        print(case, {side: (found[side]["mean_tokens"], found[side]["seconds"]) for side in SIDES}, flush=True)
    print(
        f"| {case} | {median(seconds['mmgrpo']):.2f} s | {median(seconds['trl']):.2f} s | "
        f"{median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f}) | "
        f"{max(peaks['mmgrpo']):.0f} MB | {max(peaks['trl']):.0f} MB |",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="per process; the first interval is not counted")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    cases = given.case or list(CASES)
    if given.worker:
        worker(given.worker, CASES[cases[0]], given.steps)
        return
    print("| case | mmgrpo, a step | TRL, a step | TRL / mmgrpo (range) | peak, mmgrpo | peak, TRL |")
    print("|---|---|---|---|---|---|")
    for case in cases:
        compare(case, given.rounds, given.steps)


if __name__ == "__main__":
    main()
