"""Rollouts of an inference engine: with the current weights, scored by the policy, compared with the engine's numbers.

Axes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError, EngineError
from mmgrpo.policy import EngineContext, Policy
from mmgrpo.types import Plan, Rollout
from mmgrpo.values import SAMPLER_LOGPROB

from ..distribution import LOGIT_VALUES
from ..engines.ahead import RolloutSource
from ..engines.engine import Engine, EngineAdapters, EngineModel, EngineWeights
from ..engines.synced_weights import SyncedWeights
from ..merging import base_state, checkpoint_tensors, merged_state, save_with_state
from ..rescoring import rescore
from ..vocabulary import num_logits
from ..weights import Weights

MAX_MISMATCH: Mapping[torch.dtype, float] = MappingProxyType(
    {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
)
"""Mean difference of log-probabilities that an engine may have by default, in nats, by the model's dtype."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineRollouts:
    """An engine with the weights of a policy.

    Attributes:
        engine: the engine.
        weights: its weights.
        max_mismatch: maximum mean difference between its log-probabilities and those of the policy, in nats.
    """

    engine: Engine
    weights: SyncedWeights
    max_mismatch: float

    def source(self, plan: Plan) -> RolloutSource:
        """The completions of a rollout. Without any that were sampled ahead, the engine has the current weights."""
        if not plan.ahead:
            self.weights.sync()
            return RolloutSource(self.engine, {}, sync=lambda: None)
        return RolloutSource(self.engine, plan.ahead, sync=self.weights.sync)

    def scored(self, policy: Policy, rollout: Rollout, *, is_ahead: bool) -> Rollout:
        """A rollout of the engine with the log-probabilities of the policy; the value ``SAMPLER_LOGPROB`` has the
        engine's.

        Args:
            policy: the policy, with the current weights.
            rollout: the rows as the engine sampled them.
            is_ahead: whether they were sampled one step ahead, by the weights before the last update: these had agreed
                when the engine got them.

        Returns:
            The rollout; entropies that the plan requests are the policy's too.

        Raises:
            EngineError: the difference is larger than ``max_mismatch``.
        """
        self.engine.sleep()
        sampler_BT = rollout.old_logprob_BT
        scored = rescore(policy, rollout, values=tuple(value for value in rollout.values if value.name in LOGIT_VALUES))
        if is_ahead:
            scored = replace(scored.aged(), recomputed_B=torch.ones(len(rollout.samples), dtype=torch.bool))
        else:
            self._require_agreement(sampler_BT, scored.old_logprob_BT, rollout.mask_BT)
        old_BT, trace = scored.old_logprob_BT, scored.trace
        completions = [
            replace(completion, logprob_T=old_BT[row, : len(completion.token_T)])
            for row, completion in enumerate(trace.completions)
        ]
        return replace(
            scored,
            trace=replace(trace, completions=completions),
            values={**scored.values, SAMPLER_LOGPROB: sampler_BT},
        )

    def _require_agreement(self, sampler_BT: Tensor, old_BT: Tensor, mask_BT: Tensor) -> None:
        """Raises EngineError if the engine samples from another distribution than the policy's."""
        mismatch = float((sampler_BT - old_BT)[mask_BT].abs().mean()) if bool(mask_BT.any()) else 0.0
        if not mismatch <= self.max_mismatch:
            raise EngineError(
                f"rollout.engine: log-probabilities of {self.engine.address} differ by {mismatch:.2g} nats on average "
                f"from the trainer's, and max_mismatch is {self.max_mismatch:g}: its weights are not the current ones, "
                "or it computes otherwise. Check that it serves policy.model with the dtype of policy.dtype and "
                "processed log-probabilities, without quantization, and that no other run uses it; for a server of a "
                "coarser dtype raise rollout.engine.max_mismatch"
            )


@contextmanager
def engine_rollouts(
    engine: Engine, weights: Weights, processor: Any, context: EngineContext
) -> Iterator[EngineRollouts]:
    """An engine with the current weights of a model.

    Args:
        engine: the engine.
        weights: weights of the model, which are not sharded.
        processor: its processor or tokenizer.
        context: the run around the engine.

    Yields:
        EngineRollouts: the engine with the weights.

    Raises:
        ConfigError: the engine does not support the model.
        EngineError: it cannot load the weights.
    """
    model: Any = weights.modules["model"]
    if model.config.is_encoder_decoder:
        raise ConfigError(f"rollout.engine: {type(model).__name__} is an encoder-decoder: remove rollout.engine")

    def weights_of(state: Callable[[PreTrainedModel], Mapping[str, Tensor]]) -> EngineWeights:
        def save(folder: Path) -> None:
            save_with_state(model, state(model), folder)
            processor.save_pretrained(folder)

        return EngineWeights(save=save, tensors=lambda: checkpoint_tensors(model, state(model)))

    lora = weights.lora
    served = EngineModel(
        num_tokens=num_logits(model),
        dtype=str(weights.dtype).removeprefix("torch."),
        head_size=head_size(model),
        device=model.device,
        weights=weights_of(merged_state),
        adapters=EngineAdapters(rank=lora.rank, save=weights.save, base=weights_of(base_state)) if lora else None,
    )
    with engine.serving(served, context):
        synced = SyncedWeights(engine, list(model.parameters()), sends=context.is_main)
        synced.sync()
        engine.sleep()
        limit = MAX_MISMATCH[weights.dtype] if engine.max_mismatch is None else engine.max_mismatch
        yield EngineRollouts(engine=engine, weights=synced, max_mismatch=limit)


def head_size(model: PreTrainedModel) -> int | None:
    """The size of the decoder's attention heads; None: its configuration has none."""
    text = model.config.get_text_config(decoder=True)
    num_heads = getattr(text, "num_attention_heads", None)
    return getattr(text, "head_dim", None) or (num_heads and text.hidden_size // num_heads)
