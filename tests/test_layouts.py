"""Blocks that wait until they are sharded, on one process without sharding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor, nn

from mmgrpo.layouts import blocks_of, deferred_moves, has_deferred_moves, move_modules, run_deferred_moves
from mmgrpo.policy import Policy, SupportsSharding

MODELS = {
    DenoisingPolicy: "python:tests.policies.tiny_policies:build_sd3",
    LanguagePolicy: "python:tests.policies.tiny_language:build_llama",
}


def made(kind: Any, **settings: Any) -> Any:
    return kind.from_config({"model": MODELS[kind], "dtype": "bfloat16", "lora": None, **settings})


def module_of(policy: Any) -> nn.Module:
    return policy.model if isinstance(policy, LanguagePolicy) else policy.pipeline.transformer


def values(policy: Policy) -> Tensor:
    return torch.cat([p.detach().flatten() for p in policy.trainable])


def laid_nowhere(policy: SupportsSharding) -> None:
    """Shards it as an engine does, without moving anything elsewhere."""

    def shard(name: str, module: nn.Module, *, empty: object = None, within: object = None) -> None:
        for block in reversed(blocks_of(module)):
            run_deferred_moves(block)

    policy.shard(shard)


@pytest.mark.parametrize("kind", [*MODELS])
def test_blocks_stay_as_they_were_loaded_until_it_is_their_turn(kind: Any) -> None:
    expected = values(made(kind))
    with deferred_moves():
        policy = made(kind)
        module = module_of(policy)
        blocks = blocks_of(module)
        within = {id(p) for block in blocks for p in block.parameters()}
        assert blocks
        assert has_deferred_moves(module)
        for parameter in module.parameters():
            assert parameter.dtype == (torch.bfloat16 if id(parameter) in within else torch.float32)
        run_deferred_moves(blocks[0])
        assert {p.dtype for p in blocks[0].parameters()} == {torch.float32}
        assert {p.dtype for p in blocks[1].parameters()} == {torch.bfloat16}
    assert not has_deferred_moves(module)
    assert torch.equal(values(policy), expected)
    assert all(p.requires_grad and p.dtype == torch.float32 for p in policy.trainable)


@pytest.mark.parametrize("kind", [*MODELS])
def test_initial_weights_keep_all_digits(kind: Any, tmp_path: Path) -> None:
    first = made(kind)
    with torch.no_grad():
        for parameter in first.trainable:
            parameter.mul_(1 + 2**-12)
    first.save(tmp_path)
    with deferred_moves():
        policy = made(kind, adapter=str(tmp_path))
        assert not torch.equal(values(policy), values(first))
        laid_nowhere(policy)
    assert torch.equal(values(policy), values(first))


def test_failures_leave_no_deferred_move() -> None:
    made_of: list[Any] = []

    def fail() -> None:
        made_of.append(made(DenoisingPolicy))
        raise ValueError("so be it")

    with pytest.raises(ValueError, match="so be it"), deferred_moves():
        fail()
    module = made_of[0].pipeline.transformer
    assert not has_deferred_moves(module)
    move_modules([module], lambda tensor: tensor.double())
    assert {p.dtype for p in module.parameters()} == {torch.float64}
