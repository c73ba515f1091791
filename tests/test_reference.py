"""The page of all keys has the types, limits and defaults of the models."""

from __future__ import annotations

from mmgrpo.config import RunConfig
from mmgrpo.docgen.configuration import configuration_page


def row_of(key: str) -> list[str]:
    """Type, default and description of a key of the page."""
    line, *_ = [line for line in configuration_page().splitlines() if line.startswith(f"| `{key}` |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")[1:]]


def test_every_top_level_key_is_listed() -> None:
    for name in RunConfig.model_fields:
        assert len(row_of(name)) == 3


def test_types_limits_and_defaults_are_the_models() -> None:
    assert row_of("rollout.group_size")[:2] == ["int, >= 1", "`8`"]
    assert row_of("update.optimizer.max_grad_norm")[:2] == ["float or null, > 0", "`1.0`"]
    assert row_of("rewards[].clip")[:2] == ["[float, float] or null", "`null`"]
    assert row_of("update.ema.decay")[:2] == ["float, > 0, < 1", "`0.9`"]
    assert row_of("objective.surrogate")[:2] == ["named or null", "`{name: clipped, low: 0.2, high: 0.2}`"]
    assert row_of("update.warmup.examples")[:2] == ["named", "required"]
    assert row_of("prompts.sources[].source")[:2] == ["text", "required"]
    assert row_of("rewards[].weight")[:2] == ["float", "`1.0`"]
    assert row_of("evaluation.prompts")[:2] == ["section or null", "`null`"]
    assert row_of("policy.lora.init")[:2] == ["`gaussian` or `kaiming`", "`gaussian`"]
    assert row_of("policy.lora")[:2] == ["section or null", "`null`"]


def test_names_are_listed_with_their_numbers() -> None:
    assert row_of("random_subset")[0] == "size, low (0), high (null)"
    assert row_of("progressive")[0] == "size, stride (1), interval, low (0), high (null)"
    assert row_of("flow_sde")[0] == ""
    assert row_of("adamw")[0] == "betas ([0.9, 0.999]), eps (1e-08), weight_decay (0)"


def test_keys_of_tasks() -> None:
    assert row_of("tasks")[:2] == ["mapping or list of section", "`{}`"]
    assert row_of("tasks[].set")[:2] == ["mapping", "`{}`"]
    assert row_of("rollout.task")[:2] == ["section or null", "`null`"]
    assert row_of("rollout.task.policy_of")[:2] == ["text or null", "`null`"]
