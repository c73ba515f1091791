"""Whole training steps of a language policy against TRL's GRPOTrainer: same model, data, group, lengths and dtype.

    python -m benchmarks.language [--case image|text|image-3b] [--rounds 2] [--steps 3] [--device cpu]

Each round runs one process of ours and one of TRL's, A B A B; a step is the time between two calls of the reward, so it
holds everything: generation, scoring, the update. The first interval of a process is left out. ``image-3b`` has the
shape of Qwen2.5-VL 3B with random weights in bfloat16 and LoRA, for a GPU.
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
from mmgrpo.policies.shapes import model_configs
from mmgrpo.policies.text_models import language_linears
from PIL import Image
from tokenizers import Tokenizer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
)

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


PUBLISHED = "Qwen/Qwen2.5-VL-3B-Instruct"
ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
PATCH, MERGE = 14, 2  # of the published model: a token for 28 x 28 pixels
RANK = 32


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured.

    Attributes:
        words: of the prompt's text.
        completion: tokens of a completion at most; a random model ends about one row in eight steps earlier.
        shows: whether a prompt has an image.
        published: whether the model has the published shape, in bfloat16 with LoRA; else it is small, and every weight
            is trained in float32.
        side: of the image, in pixels.
        batch: rows of a backward pass of TRL's, which reads the prompt for each of them.
    """

    words: int
    completion: int
    shows: bool
    published: bool = False
    side: int = IMAGE_SIDE
    batch: int = PROMPTS * GROUP_SIZE

    @property
    def lora(self) -> dict[str, Any] | None:
        """Adapters of the published model."""
        return {"rank": RANK, "alpha": 2.0 * RANK} if self.published else None


CASES = {
    "image": Case(10, 128, True),
    "text": Case(52, 128, False),
    "image-3b": Case(10, 128, True, published=True, side=28 * PATCH * MERGE, batch=4),
}


def model_and_processor(case: Case, device: str = "cpu") -> tuple[Any, Any]:
    """The same random weights on both sides, made on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        if case.published:
            return _published_model_and_processor(case)
        return _small_model_and_processor(case)


def _small_model_and_processor(case: Case) -> tuple[Any, Any]:
    if not case.shows:
        tokenizer: Any = _filled(chat_tokenizers.qwen(), VOCABULARY)
        model = LlamaForCausalLM(LlamaConfig(**TEXT, eos_token_id=tokenizer.eos_token_id, pad_token_id=0))
        return model, tokenizer
    processor: Any = processors.qwen2_5_vl()
    processor.image_processor.size = {"shortest_edge": 64, "longest_edge": case.side**2}
    tokenizer = processor.tokenizer = _filled(processor.tokenizer, VOCABULARY)
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
    text = TEXT | {"rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12]}}
    return Qwen2_5_VLForConditionalGeneration(_vision_config(text, vision, tokenizer)), processor


def _published_model_and_processor(case: Case) -> tuple[Any, Any]:
    stock, shape = processors.qwen2_5_vl(), model_configs(PUBLISHED).config
    text, vision = shape["text_config"] | {"rope_parameters": {**ROPE}}, shape["vision_config"]
    tokenizer = _filled(stock.tokenizer, text["vocab_size"])
    images = Qwen2VLImageProcessor(
        size={"shortest_edge": (4 * PATCH) ** 2, "longest_edge": case.side**2},
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
    )
    processor = Qwen2_5_VLProcessor(images, tokenizer, stock.video_processor, chat_template=tokenizer.chat_template)
    config = _vision_config(text, vision | {"patch_size": PATCH, "spatial_merge_size": MERGE}, tokenizer)
    config.tie_word_embeddings = shape["tie_word_embeddings"]
    return Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=torch.bfloat16), processor


def _filled(tokenizer: PreTrainedTokenizerFast, size: int) -> PreTrainedTokenizerFast:
    """The tokenizer with further tokens, up to a vocabulary of this size: every output of the head is a token."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    first = len(tokenizer)
    vocabulary |= {f"unused{number}": number for number in range(first, size)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        chat_template=tokenizer.chat_template,
        padding_side=tokenizer.padding_side,
        **chat_tokenizers.CHATML_ENDS,
    )


def _vision_config(text: dict[str, Any], vision: dict[str, Any], tokenizer: Any) -> Qwen2_5_VLConfig:
    ids = tokenizer.get_vocab()
    return Qwen2_5_VLConfig(
        text_config=text | {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id},
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def questions(case: Case, number: int) -> list[tuple[str, Image.Image]]:
    """Different texts of the same length, each with a different image."""
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(chat_tokenizers.WORDS, case.words)) for _ in range(number)]
    pixels = draw.integers(0, 255, (number, case.side, case.side, 3), dtype=np.uint8)
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


def run_ours(case: Case, steps: int, clock: Clock, folder: str, device: str) -> None:
    """A run of mmgrpo's trainer."""
    from mmgrpo.policies.language import LanguagePolicy

    from mmgrpo.training.trainer import Trainer
    from mmgrpo.types import Prompt

    model, processor = model_and_processor(case, device)
    settings = {"max_new_tokens": case.completion, "update_tokens": 1 << 16, "lora": case.lora}
    policy = LanguagePolicy(model, processor, settings)
    prompts = [Prompt(text, images=[image] if case.shows else []) for text, image in questions(case, 8)]
    config = {
        "output": folder,
        "steps": steps,
        "rollout": {"prompts_per_step": PROMPTS, "group_size": GROUP_SIZE},
        "update": {"optimizer": {"lr": LEARNING_RATE}},
        "runtime": {"device": device},
    }
    Trainer(policy, {"clock": clock}, prompts, config).train()


def run_trl(case: Case, steps: int, clock: Clock, folder: str, device: str) -> None:
    """TRL's trainer with its default generation."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    model, processor = model_and_processor(case, device)
    rows = questions(case, 8)
    columns: dict[str, Any] = {"prompt": [[{"role": "user", "content": text}] for text, _ in rows]}
    if case.shows:
        columns["image"] = [image for _, image in rows]
    arguments = GRPOConfig(
        output_dir=folder,
        use_cpu=device == "cpu",
        bf16=case.published,
        report_to=[],
        gradient_checkpointing=False,
        save_strategy="no",
        max_steps=steps,
        per_device_train_batch_size=case.batch,
        gradient_accumulation_steps=PROMPTS * GROUP_SIZE // case.batch,
        num_generations=GROUP_SIZE,
        max_completion_length=case.completion,
        learning_rate=LEARNING_RATE,
        loss_type="grpo",
        beta=0.0,
        disable_tqdm=True,
    )
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=language_linears(model)) if case.lora else None
    reward: Any = clock
    GRPOTrainer(
        model,
        reward,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        processing_class=processor,
        peft_config=lora,
    ).train()


def worker(side: str, case: Case, steps: int, device: str) -> None:
    """Prints the measurements of one process, as JSON."""
    if device == "cpu":
        torch.set_num_threads(1)
    clock = Clock()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        (run_ours if side == "mmgrpo" else run_trl)(case, steps, clock, folder, device)
    intervals = [b - a for a, b in zip(clock.called, clock.called[1:], strict=False)]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    peak_mb = torch.cuda.max_memory_allocated() / 2**20 if device.startswith("cuda") else grown / 1024
    result = {"seconds": intervals[1:], "peak_mb": peak_mb, "mean_tokens": float(np.mean(clock.tokens))}
    print(json.dumps(result))


def measured(side: str, case: str, steps: int, device: str) -> dict[str, Any]:
    """The measurements of a separate process."""
    options = ["--worker", side, "--case", case, "--steps", str(steps), "--device", device]
    command = [sys.executable, "-m", "benchmarks.language", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides by turns.

    Attributes:
        seconds: of every step, by side.
        peak_mb: largest memory of a process, by side: of the GPU where there is one, else what it has grown by.
        ratios: TRL's median / ours, a round each.
    """

    seconds: dict[str, list[float]]
    peak_mb: dict[str, float]
    ratios: list[float]


def compare(case: str, rounds: int, steps: int, device: str = "cpu") -> Comparison:
    """Runs both sides alternately, each time in a separate process."""
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    peak_mb: dict[str, float] = dict.fromkeys(SIDES, 0.0)
    ratios: list[float] = []
    for _ in range(rounds):
        result = {side: measured(side, case, steps, device) for side in SIDES}
        for side in SIDES:
            seconds[side] += result[side]["seconds"]
            peak_mb[side] = max(peak_mb[side], result[side]["peak_mb"])
        ratios.append(median(result["trl"]["seconds"]) / median(result["mmgrpo"]["seconds"]))
        print(case, {side: (result[side]["mean_tokens"], result[side]["seconds"]) for side in SIDES}, flush=True)
    return Comparison(seconds, peak_mb, ratios)


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="per process; the first interval is not counted")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    cases = options.case or [name for name, case in CASES.items() if not case.published]
    if options.worker:
        worker(options.worker, CASES[cases[0]], options.steps, options.device)
        return
    print("| case | mmgrpo, a step | TRL, a step | TRL / mmgrpo (range) | peak, mmgrpo | peak, TRL |")
    print("|---|---|---|---|---|---|")
    for case in cases:
        both = compare(case, options.rounds, options.steps, options.device)
        seconds, peak_mb, ratios = both.seconds, both.peak_mb, both.ratios
        print(
            f"| {case} | {median(seconds['mmgrpo']):.2f} s | {median(seconds['trl']):.2f} s | "
            f"{median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f}) | "
            f"{peak_mb['mmgrpo']:.0f} MB | {peak_mb['trl']:.0f} MB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
