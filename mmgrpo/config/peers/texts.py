"""Keys and replacements that several settings of other libraries share."""

from __future__ import annotations

from mmgrpo.system.site_pages import page_url

ADAPTERS = "policy.lora: {rank: N}, or null for full"
CLIPPED = "objective.surrogate: {name: clipped, low: NUMBER, high: NUMBER}"
DUAL_CLIPPED = "objective.surrogate: {name: dual_clipped, low: NUMBER, high: NUMBER, bound: NUMBER}"
EPOCHS = "steps: EPOCHS * rows / prompts_per_step"
EVALUATION_STEPS = "policy.evaluation_call: {num_inference_steps: N}"
FOUR_BIT = "policy.quantization_config: {load_in_4bit: true} with policy.lora"
FUNCTION = "rewards: [{name: python:MODULE:FUNCTION}]"
GUIDANCE = "policy.call: {guidance_scale: NUMBER}"
LENGTH = "shorter prompts: none is cut, and one that exceeds the model's context is an error of its row"
NODES = f"`accelerate launch` on each node ({page_url('how-to/several-gpus')})"
OVERLONG = "rewards: [{name: overlong, max_length: N, margin: N}]"
PROJECT = "runtime.trackers: [{name: wandb, project: PROJECT}]"
REFILL = "rollout.strategy: {name: refill, rounds: N}"
RSLORA = "policy.lora.alpha: ALPHA * sqrt(RANK)"
SERVER = "leave it out: it is an argument of the vLLM server"
SHARDED = "`mmgrpo train --accelerate fsdp2`, zero2 or zero3"
SIZE = "policy.call: {height: SIZE, width: SIZE}"
STEPS = "policy.call: {num_inference_steps: N}"
SUBSET = "rollout.window: {name: random_subset, size: N, low: FIRST, high: LAST + 1}"
TOKENS = "policy.update_tokens, the tokens of a forward; the loss is exact at every size"
WANDB = "runtime.trackers: [{name: wandb}]"
WINDOW = "rollout.window: {name: random, size: N, low: FIRST, high: END}, END exclusive"
