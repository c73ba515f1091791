"""Whether a family is exact: compared with plain calls of the model and with ``generate``, full and with LoRA.

This does not use the check of the policy: the plain call is written a second time.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.forward_paths import CachedPath
from torch import Tensor

from mmgrpo.errors import MmgrpoError
from mmgrpo.types import Plan, Prompt, Rollout
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values

SEED, TOKENS, TEMPERATURE = 3, 5, 4.0
VALUE, GRADIENT = 5e-5, 5e-4
"""Largest error of an exact family: log-probabilities in units of themselves above 1, gradients in their norm."""

SHARED, SINGLE, PLAIN, NOT_SUPPORTED, WRONG = (
    "exact, prompts once per group",
    "exact, prompts once per row in updates",
    "exact, the plain path",
    "not supported",
    "wrong",
)
VARIANTS: dict[str, Any] = {"full": None, "LoRA": {"rank": 2, "alpha": 2.0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a family.

    Attributes:
        verdict: one of the constants above.
        message: why it is not supported, or what is wrong.
    """

    verdict: str
    message: str = ""

    @property
    def exact(self) -> bool:
        """In every variant and on every kind of row."""
        return self.verdict in (SHARED, SINGLE, PLAIN)


def outcome(model: Any, processor: Any, prompts: Sequence[Prompt]) -> Outcome:
    """Of one family on prompts of every kind it takes: the worst of its variants."""
    result: list[Outcome] = []
    for variant, lora in VARIANTS.items():
        try:
            result.append(_variant(copy.deepcopy(model), processor, prompts, lora))
        except MmgrpoError as error:
            result.append(Outcome(verdict=NOT_SUPPORTED, message=f"{error}"))
        except Exception as error:
            result.append(Outcome(verdict=WRONG, message=f"{variant}: {type(error).__name__}: {error}"))
    order = (SHARED, SINGLE, PLAIN, NOT_SUPPORTED, WRONG)
    return max(result, key=lambda outcome: order.index(outcome.verdict))


def _variant(model: Any, processor: Any, prompts: Sequence[Prompt], lora: Any) -> Outcome:
    settings = {"max_new_tokens": TOKENS, "temperature": TEMPERATURE, "lora": lora}
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(0)
        policy = LanguagePolicy(model, processor, settings)
        rollout = policy.rollout(prompts, group_size=2, seed=SEED)
        wrong = _wrong(policy, rollout, prompts)
    if wrong is not None:
        return Outcome(verdict=WRONG, message=wrong)
    way = policy.path
    return Outcome(verdict=PLAIN if not isinstance(way, CachedPath) else SHARED if way.shared else SINGLE)


def _wrong(policy: LanguagePolicy, rollout: Rollout, prompts: Sequence[Prompt]) -> str | None:
    if (message := _unlike_generate(policy, prompts)) is not None:
        return message
    if not (gap := _plain_gap(policy, rollout, rollout.old_logprob_BT)) <= VALUE:
        return f"stored log-probabilities differ by {gap:.1e} from the plain call"
    move(policy.trainable, scale=0.02)
    if not (gap := _plain_gap(policy, rollout, values(policy, rollout))) <= VALUE:
        return f"recomputed log-probabilities differ by {gap:.1e} from the plain call"
    if not (gap := _gradient_gap(policy, rollout)) <= GRADIENT:
        return f"gradients differ by {gap:.1%} from the plain call's"
    return None


def _unlike_generate(policy: LanguagePolicy, prompts: Sequence[Prompt]) -> str | None:
    """Whether the likeliest completions differ from generate's, which may not write what the policy may not."""
    written = policy.rollout(prompts, group_size=1, seed=SEED, plan=Plan(stochastic=())).samples
    ends, model = policy._end_ids.tolist(), policy.model
    for module in model.modules():
        if (config := getattr(module, "generation_config", None)) is not None:  # nothing is forced here
            config.forced_bos_token_id = config.forced_eos_token_id = None  # pyrefly: ignore[bad-argument-type, missing-attribute]
    for prompt, sample in zip(prompts, written, strict=True):
        encoded = policy._encoder(prompt)
        inputs = {"input_ids": encoded.ids_P[None], **_single(encoded.per_token), **_single(encoded.media)}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        generate: Any = model.generate
        out = generate(
            **inputs,
            max_new_tokens=TOKENS,
            do_sample=False,
            num_beams=1,
            suppress_tokens=policy._sampling.suppressed.tolist() or None,
            eos_token_id=ends,
            pad_token_id=ends[0],
            no_repeat_ngram_size=0,
        )
        tokens = list(sample.tokens or ())
        theirs = out[0].tolist()[-len(tokens) :]
        if tokens != theirs:
            return f"the likeliest tokens are {tokens}, generate writes {theirs}"
    return None


def _plain(policy: LanguagePolicy, rollout: Rollout, row: int) -> Tensor:
    """Log-probabilities of a row's tokens by the model called plainly, (T,)."""
    trace, model = rollout.trace, policy.model
    encoded, token_T = trace.prompts[trace.prompt_of_B[row]], trace.completions[row].token_T
    T, P = len(token_T), encoded.length
    inputs = _single(encoded.per_token) | _single(encoded.media)
    text = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder or text.is_encoder_decoder:
        named = (model.generation_config, model.config, text)
        start = [getattr(source, name, None) for name in ("decoder_start_token_id", "bos_token_id") for source in named]
        first = torch.tensor([next(token for token in start if token is not None)])
        inputs |= {"input_ids": encoded.ids_P[None], "decoder_input_ids": torch.cat([first, token_T[:-1]])[None]}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        logits_TV = model(**inputs, use_cache=False).logits[0]
    else:
        for name, tensor in inputs.items():
            if tensor.shape[:2] == (1, P):
                last = tensor[:, -1:] if policy.path.fill == -1 else torch.full_like(tensor[:, -1:], policy.path.fill)
                inputs[name] = torch.cat([tensor, *[last] * T], dim=1)
        inputs["input_ids"] = torch.cat([encoded.ids_P, token_T])[None]
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        logits_TV = model(**inputs, use_cache=False).logits[0, -T - 1 : -1]
    logprob_TV = policy._sampling.tempered(logits_TV.float()).log_softmax(-1)
    return logprob_TV.gather(-1, token_T[:, None])[:, 0]


def _single(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In the model's float32, whatever the processor makes."""
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


@torch.no_grad()
def _plain_gap(policy: LanguagePolicy, rollout: Rollout, result_BT: Tensor) -> float:
    plain_BT = torch.zeros_like(result_BT)
    for row in range(len(rollout.samples)):
        plain_T = _plain(policy, rollout, row)
        plain_BT[row, : len(plain_T)] = plain_T
    return largest_difference(result_BT, plain_BT, rollout.mask_BT)


def _gradient_gap(policy: LanguagePolicy, rollout: Rollout) -> float:
    result = gradients(policy, rollout)
    weight_BT = torch.randn(rollout.shape, generator=torch.Generator().manual_seed(3))  # as gradients() weighs
    expected = [torch.zeros_like(parameter) for parameter in policy.trainable]
    for row in range(len(rollout.samples)):
        plain_T = _plain(policy, rollout, row)
        total = (weight_BT[row, : len(plain_T)] * plain_T).sum()
        parts = torch.autograd.grad(total, policy.trainable, allow_unused=True)
        expected = [e if part is None else e + part for e, part in zip(expected, parts, strict=True)]
    return relative_difference(result, expected)


@contextmanager
def _quiet() -> Iterator[None]:
    """The policy logs which way it takes; here that is the result."""
    logger = logging.getLogger("mmgrpo.policies.language.path_selection")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
