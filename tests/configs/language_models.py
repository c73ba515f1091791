"""Tiny language models that a configuration names: of the policy, its critic and its teacher."""

from __future__ import annotations

from typing import Any

from tests.policies.contract import move
from tests.policies.tiny_language import measured_policy_of

HERE = "tests.configs.language_models"
WRITER = {"name": "language", "dtype": "float32", "max_new_tokens": 5, "temperature": 8.0}


def writer() -> tuple[Any, Any]:
    """The language model that the runs train, for a critic or a teacher."""
    policy = measured_policy_of("llama", lora=None)
    return policy.model, policy.processor


def teacher() -> tuple[Any, Any]:
    """Another one, with the same tokenizer."""
    policy = measured_policy_of("llama")
    move(policy.trainable)
    return policy.model, policy.processor


CRITIC = {**WRITER, "model": f"python:{HERE}:writer"}
TEACHER = {"policy": {**WRITER, "model": f"python:{HERE}:teacher"}}
