"""Memory of a process while a model is loaded and sharded, and afterwards: all weights trained, two processes on CPUs.

    python -m benchmarks.loading

The models have some 170 to 270 million parameters, random, in bfloat16 files. Memory is the private one (``RssAnon``),
less that before, read every 4 ms; freed memory is returned at once (``MALLOC_MMAP_THRESHOLD_``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from diffusers import SD3Transformer2DModel
from transformers import Qwen2Config, Qwen2ForCausalLM

from mmgrpo import Trainer
from mmgrpo.config import RunConfig
from tests.policies.tiny_policies import build_sd3
from tests.tiny.language_models import make

MIB = 2**20
KINDS = ("language", "denoising")
ENGINES = {
    "replicated": {},
    "fsdp2": {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"},
    "zero3": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"},
}
"""Settings of accelerate for each."""
ENVIRONMENT = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}


def save_models(folder: Path) -> dict[str, int]:
    """Writes one of each kind; gives the bytes of its trained weights in float32."""
    _, tokenizer = make("llama")
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=16,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config)
    pipeline = build_sd3()
    values = {key: value for key, value in pipeline.transformer.config.items() if not key.startswith("_")}
    values |= {"num_layers": 8, "attention_head_dim": 64, "num_attention_heads": 16}
    pipeline.transformer = SD3Transformer2DModel(**values)
    for part in (model.to(torch.bfloat16), tokenizer):  # pyrefly: ignore[bad-argument-type]
        part.save_pretrained(folder / "language")
    pipeline.to(torch.bfloat16).save_pretrained(folder / "denoising")
    trained = {"language": model, "denoising": pipeline.transformer}
    return {kind: 4 * sum(p.numel() for p in module.parameters()) for kind, module in trained.items()}


def load(model: Path) -> None:
    """In one of two processes: prints its peak and its final memory, in bytes."""

    def anonymous_bytes() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    def watch() -> None:
        while True:
            memory.append(anonymous_bytes())
            time.sleep(0.004)

    policy = {"name": model.name, "model": str(model), "dtype": "bfloat16", "lora": None}
    policy |= {"max_new_tokens": 4} if model.name == "language" else {"call": {"height": 16, "width": 16}}
    config = RunConfig.model_validate({"policy": policy, "runtime": {"device": "cpu"}})
    accelerator = Accelerator()
    before = anonymous_bytes()
    memory = [before]
    threading.Thread(target=watch, daemon=True).start()
    trainer = Trainer(None, lambda samples: [0.0] * len(samples), ["a"] * 4, config, accelerator=accelerator)
    if trainer.job.is_main:
        print(max(memory) - before, anonymous_bytes() - before)
    torch.distributed.destroy_process_group()


def main() -> None:
    """Prints a row a case, of the first process."""
    if sys.argv[1:]:
        load(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        sizes = save_models(Path(name))
        print(f"{'':20}{'weights':>10}{'peak':>10}{'afterwards':>12}   MiB")
        for kind in KINDS:
            for engine, settings in ENGINES.items():
                command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
                command += ["-m", "benchmarks.loading", str(Path(name) / kind)]
                done = subprocess.run(
                    command, env={**os.environ, **ENVIRONMENT, **settings}, check=True, capture_output=True, text=True
                )
                (numbers,) = (line.split() for line in done.stdout.splitlines() if line[:1].isdigit())
                peak, final = map(int, numbers)
                print(f"{kind + ', ' + engine:20}{sizes[kind] / MIB:10.0f}{peak / MIB:10.0f}{final / MIB:12.0f}")


if __name__ == "__main__":
    main()
