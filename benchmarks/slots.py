"""Rollouts of answers whose lengths vary tenfold: CPU seconds and forwards in slots that refill, and batch after batch.

python -m benchmarks.slots [--rows 128] [--slots 16] [--width 64] [--layers 2] [--mean-length 40] [--repeat 2]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from functools import partial
from statistics import fmean, quantiles
from typing import Any

import torch
from mmgrpo.policies.language import LanguagePolicy
from transformers import LlamaConfig, LlamaForCausalLM

from mmgrpo.types import Prompt, Rollout
from tests.tiny.language_models import TINY

PROMPTS = ("what number is this", "how many red squares do you see in the picture on the left")


def policy_of(arguments: argparse.Namespace, *, in_slots: bool) -> LanguagePolicy:
    """A random Llama that ends its answer with the same probability at every token."""
    tokenizer: Any = TINY["llama"].processor()
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=arguments.width,
        intermediate_size=4 * arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=max(arguments.width // 32, 2),
        num_key_value_heads=max(arguments.width // 64, 1),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    words = [token for token in range(60, 500) if token != tokenizer.eos_token_id][: arguments.mean_length - 1]
    settings = {
        "rollout_batch": arguments.slots,
        "max_new_tokens": 8 * arguments.mean_length,
        "temperature": 1000.0,
        "suppress": [t for t in range(512) if t not in {*words, tokenizer.eos_token_id}],
    }
    policy = LanguagePolicy(LlamaForCausalLM(config).eval(), tokenizer, settings)
    selector = policy._selector
    selector._candidates = [path for path in selector._candidates if path.slots == in_slots]
    return policy


def _count(forwards: Counter[bool], in_slots: bool, *_: object) -> None:
    forwards[in_slots] += 1


def main() -> None:
    """Prints CPU seconds and lengths, alternating batches and slots, and the ratio of each pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rows", 128), ("slots", 16), ("width", 64), ("layers", 2), ("mean-length", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--repeat", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prompts = [Prompt(text) for text in PROMPTS]
    policies = {in_slots: policy_of(arguments, in_slots=in_slots) for in_slots in (False, True)}
    for policy in policies.values():
        policy.rollout(prompts, group_size=arguments.rows // len(prompts), seed=0)  # checks the paths
    for _ in range(arguments.repeat):
        spent_s: dict[bool, float] = {}
        rollouts: dict[bool, Rollout] = {}
        forwards: Counter[bool] = Counter()
        for in_slots, policy in policies.items():
            hook = policy.model.base_model.register_forward_hook(partial(_count, forwards, in_slots))
            start_s = time.process_time()
            rollouts[in_slots] = policy.rollout(prompts, group_size=arguments.rows // len(prompts), seed=0)
            spent_s[in_slots] = time.process_time() - start_s
            hook.remove()
        texts = [[sample.tokens for sample in rollout.samples] for rollout in rollouts.values()]
        lengths = [len(tokens or ()) for tokens in texts[0]]
        tenths = quantiles(lengths, n=10)
        result = {
            "batches_s": round(spent_s[False], 2),
            "slots_s": round(spent_s[True], 2),
            "ratio": round(spent_s[False] / spent_s[True], 2),
            "batches_forwards": forwards[False],
            "slots_forwards": forwards[True],
            "equal_samples": texts[0] == texts[1],
            "length_mean": round(fmean(lengths), 1),
            "length_tenths": [round(tenths[0]), round(tenths[-1])],
            "length_max": max(lengths),
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
