"""Updates of answers whose lengths vary tenfold: tokens and CPU seconds of rows in buckets of similar length, and
of rows in one sequence without padding.

python -m benchmarks.buckets [--prompts 4] [--group 8] [--longest 256] [--repeat 2] [--full]
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.forward_paths import CachedPath

from benchmarks.language import CASES, model_and_processor
from mmgrpo.types import OffPolicySample, Prompt, Rollout, Sample


def rollout_of(policy: LanguagePolicy, arguments: argparse.Namespace) -> Rollout:
    """Rows of random tokens, with lengths spread evenly from a tenth of the longest to the longest."""
    generator = torch.Generator().manual_seed(0)
    answers = []
    for group in range(arguments.prompts):
        prompt = Prompt(" ".join(["one two three"] * 20) + f" {group}")
        for member in range(arguments.group):
            length = int(torch.randint(arguments.longest // 10, arguments.longest + 1, (), generator=generator))
            tokens = torch.randint(30, 200, (length,), generator=generator).tolist()
            sample = Sample(prompt, group, member, text="", tokens=tokens, finished=False)
            answers.append(OffPolicySample(sample=sample, old_logprob_T=torch.zeros(length)))
    return policy.read(answers, seed=0)


def measured(policy: LanguagePolicy, rollout: Rollout) -> tuple[float, int, int]:
    """CPU seconds of the forwards and backwards of an update, their tokens and their number."""
    num_tokens: list[int] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        num_tokens.append(kwargs["input_ids"].numel())

    handle = policy.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    start_s = time.process_time()
    for evaluation in policy.evaluate(rollout):
        evaluation.logprob_BT.sum().backward()
    spent_s = time.process_time() - start_s
    handle.remove()
    return spent_s, sum(num_tokens), len(num_tokens)


def main() -> None:
    """Prints, alternating, CPU seconds of one forward a batch and of buckets, and the tokens of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("prompts", 4), ("group", 8), ("longest", 256), ("repeat", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--full", action="store_true", help="run each row in full, also as one sequence without padding"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, processor = model_and_processor(CASES["text"])
    settings = {"max_new_tokens": arguments.longest, "share_prefix": not arguments.full}
    policy = LanguagePolicy(model, processor, settings)
    rollout = rollout_of(policy, arguments)
    measured(policy, rollout)  # checks the paths, and allocates
    path = policy.path
    assert isinstance(path, CachedPath)
    exact = sum(len(sample.tokens or ()) - 1 for sample in rollout.samples)
    owners = rollout.trace.prompt_of_B if arguments.full else range(arguments.prompts)
    exact += sum(rollout.trace.prompts[owner].length + arguments.full for owner in owners)
    for _ in range(arguments.repeat):
        policy._selector.path = replace(path, forward_tokens=lambda: 1 << 30)
        padded_s, padded_tokens, padded_calls = measured(policy, rollout)
        policy._selector.path = path
        buckets_s, tokens, calls = measured(policy, rollout)
        result: dict[str, Any] = {
            "padded_s": round(padded_s, 2),
            "buckets_s": round(buckets_s, 2),
            "ratio": round(padded_s / buckets_s, 2),
            "padding_frac_padded": round(1 - exact / padded_tokens, 3),
            "padding_frac_buckets": round(1 - exact / tokens, 3),
            "forwards": [padded_calls, calls],
        }
        if arguments.full:
            policy._selector.path = replace(path, packed=True)
            packed_s, _, packed_calls = measured(policy, rollout)
            result |= {"packed_s": round(packed_s, 2), "packed_ratio": round(padded_s / packed_s, 2)}
            result["packed_forwards"] = packed_calls
        print(json.dumps(result))


if __name__ == "__main__":
    main()
