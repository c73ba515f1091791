"""The laws that mmgrpo holds every policy to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from diffusion_policy.chunk_policy import ChunkPolicy
from diffusion_policy.push_tasks import held_out_starts

from mmgrpo.testing import LAWS, Subject

SMALL = {"chunks": 3, "chunk_length": 2, "denoising_steps": 3, "width": 16}


def policy(batch: int) -> ChunkPolicy:
    """The same weights each time."""
    torch.manual_seed(0)
    return ChunkPolicy({**SMALL, "rollout_batch": batch, "update_batch": batch})


SUBJECT = Subject(
    make=policy,
    parameters=lambda policy: policy.trainable,
    prompts=held_out_starts(2),
    gap=1e-5,  # a chunk alone and with others: rounding of products, over a std of 0.1
    rounding=1e-5,
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Subject], None]) -> None:
    law(SUBJECT)
