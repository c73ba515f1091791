"""Rollouts and updates of the text model of ``benchmarks.language`` with and without ``policy.compile``, by turns.

    python -m benchmarks.compiled_layers [--repeat 3] [--device cpu]

The first pair, which compiles, is printed and not counted.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median

import torch
from mmgrpo.policies.language import LanguagePolicy

from benchmarks.language import CASES, GROUP_SIZE, PROMPTS, model_and_processor, questions
from mmgrpo.types import Prompt


def policy_of(device: str, *, compiled: bool) -> LanguagePolicy:
    """The text case, every weight trained; rollouts are scored by the forward of updates."""
    model, tokenizer = model_and_processor(CASES["text"], device)
    settings = {
        "max_new_tokens": CASES["text"].completion,
        "update_tokens": 1 << 16,
        "compile": compiled,
        "rescore": True,
    }
    return LanguagePolicy(model, tokenizer, settings)


def seconds_of(policy: LanguagePolicy, prompts: list[Prompt], device: str) -> tuple[float, float, float]:
    """Seconds of a rollout and of the gradient of its log-probabilities, and the largest difference of these."""
    times = [time.perf_counter()]
    rollout = policy.rollout(prompts, group_size=GROUP_SIZE, seed=0)
    _wait(device)
    times.append(time.perf_counter())
    gap = 0.0
    for evaluation in policy.evaluate(rollout):
        assert evaluation.rows is not None
        old_BT = rollout.old_logprob_BT[evaluation.rows][:, list(evaluation.columns)]
        mask_BT = rollout.mask_BT[evaluation.rows][:, list(evaluation.columns)]
        difference_BT = (evaluation.logprob_BT - old_BT.to(evaluation.logprob_BT.device)) * mask_BT.to(device)
        gap = max(gap, float(difference_BT.detach().abs().max()))
        difference_BT.sum().backward()
    _wait(device)
    times.append(time.perf_counter())
    for parameter in policy.trainable:
        parameter.grad = None
    return times[1] - times[0], times[2] - times[1], gap


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def main() -> None:
    """Prints the seconds of each turn, and the ratios of the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prompts = [Prompt(text) for text, _ in questions(CASES["text"], PROMPTS)]
    policies = {compiled: policy_of(arguments.device, compiled=compiled) for compiled in (False, True)}
    spent: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for turn in range(arguments.repeat + 1):
        for compiled, policy in policies.items():
            rollout_s, update_s, gap = seconds_of(policy, prompts, arguments.device)
            line = {"compiled": compiled, "rollout_s": round(rollout_s, 2), "update_s": round(update_s, 2), "gap": gap}
            print(json.dumps(line), flush=True)
            spent[compiled] += [(rollout_s, update_s)] if turn else []
    for number, part in enumerate(("rollout", "update")):
        medians = [median(pair[number] for pair in spent[compiled]) for compiled in (False, True)]
        print(f"{part}: {medians[0]:.2f} s, compiled {medians[1]:.2f} s, ratio {medians[0] / medians[1]:.2f}")


if __name__ == "__main__":
    main()
