"""Images in later turns of a conversation: tokens, media tensors, log-probabilities and gradients of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, final

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.encoding import EncodedReply
from PIL import Image
from torch import Tensor

from mmgrpo.environment import Environment, Turn
from mmgrpo.errors import PolicyError
from mmgrpo.samples import ToolResult
from mmgrpo.types import OffPolicySample, Plan, Prompt, Rollout
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values
from tests.policies.families import daily
from tests.policies.test_language_exchanges import SEED, terse
from tests.policies.tiny_language import picture, prompts_of
from tests.tiny.language_models import SEVERAL_IMAGES

FAMILIES = tuple(name for name in SEVERAL_IMAGES if name != "paligemma")
REWRITING = ("idefics3", "llava-next", "llava-onevision")
"""Families whose template trims an answer, or writes other white space before it than before one that is sampled."""
LENGTH = 400
every_family = pytest.mark.parametrize("name", daily(FAMILIES, "qwen2.5-vl", "llava-next", "gemma3"))


@final
@dataclass
class Showing(Environment):
    """Answers each turn with images, whose sizes and contents depend on the turn and the text of the policy."""

    turns: int = 3
    num_steps: int = 0

    def reset(self, prompt: Prompt) -> Turn:
        return Turn()

    def step(self, text: str) -> Turn:
        self.num_steps += 1
        if self.num_steps == self.turns:
            return Turn(done=True, reward=1.0)
        sizes = [(16, 24), (24, 16)][: self.num_steps]
        seed = sum(map(ord, text))
        return Turn(text="two red", images=[picture(*size, seed=seed + n) for n, size in enumerate(sizes)])


def conversation(policy: LanguagePolicy, name: str, **plan: Any) -> Rollout:
    return policy.rollout(prompts_of(name), group_size=3, seed=SEED, plan=Plan(environment=Showing, **plan))


def messages_of(rollout: Rollout, row: int, answers: Sequence[str]) -> tuple[list[dict[str, Any]], list[Image.Image]]:
    """The row's conversation with these answers, and its images."""
    sample = rollout.samples[row]
    images = list(sample.prompt.images)
    parts = [*({"type": "image"} for _ in images), {"type": "text", "text": sample.prompt.text}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
    for answer, end, reply in zip(answers, sample.turn_ends, sample.turn_replies, strict=True):
        messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
        if end < len(sample.tokens or ()):
            assert reply is not None
            images += reply.images
            parts = [*({"type": "image"} for _ in reply.images), {"type": "text", "text": reply.text}]
            messages.append({"role": reply.role, "content": parts})
    return messages, images


def processed(policy: LanguagePolicy, rollout: Rollout, row: int, answers: Sequence[str]) -> dict[str, Tensor]:
    """The processor's encoding of the complete conversation with these answers; LLaVA-OneVision tiles turn by turn."""
    messages, images = messages_of(rollout, row, answers)
    text = policy.processor.apply_chat_template(messages, tokenize=False)
    by_turn = [images]
    if "Onevision" in type(policy.processor).__name__:
        rest, parts = iter(images), [message["content"] for message in messages]
        numbers = [sum(part["type"] == "image" for part in content) for content in parts]
        by_turn = [[next(rest) for _ in range(number)] for number in numbers if number]
    return dict(policy.processor(text=[text], images=by_turn, return_tensors="pt", add_special_tokens=False))


def row_ids(policy: LanguagePolicy, rollout: Rollout, row: int) -> Tensor:
    sample = rollout.samples[row]
    return torch.cat([policy._encoder(sample.prompt).ids_P, torch.tensor(sample.tokens)])


def plain_inputs(policy: LanguagePolicy, rollout: Rollout, row: int) -> dict[str, Tensor]:
    """The processor's tensors of the complete conversation for the row's tokens; types of tokens go by their ids."""
    inputs = processed(policy, rollout, row, ["x"] * len(rollout.samples[row].turn_ends))
    ids, row_L = inputs.pop("input_ids"), row_ids(policy, rollout, row)
    plain = {"input_ids": row_L[None]}
    for name, tensor in inputs.items():
        if name in ("attention_mask", "labels"):
            continue
        if tensor.shape == ids.shape:
            type_of = dict(zip(ids[0].tolist(), tensor[0].tolist(), strict=True))
            tensor = torch.tensor([[type_of.get(token, 0) for token in row_L.tolist()]])
        plain[name] = tensor
    return plain


def plain_logprobs(policy: LanguagePolicy, rollout: Rollout, row: int) -> Tensor:
    """Log-probabilities of the row's tokens from one call of the model, (T,)."""
    inputs = plain_inputs(policy, rollout, row)
    num_tokens = len(rollout.samples[row].tokens or ())
    token_T = inputs["input_ids"][0, -num_tokens:]
    logits_TV = policy.model(**inputs, use_cache=False).logits[0, -num_tokens - 1 : -1] / policy.settings.temperature
    logits_TV = logits_TV.index_fill(-1, policy._sampling.suppressed, -torch.inf)
    logprob_T = logits_TV.log_softmax(-1)[torch.arange(num_tokens), token_T]
    mask_T = rollout.mask_BT[row]
    return torch.nn.functional.pad(logprob_T, (0, len(mask_T) - num_tokens)).where(mask_T, 0.0)


@every_family
def test_rows_with_images_in_every_turn_are_scored_as_by_a_plain_call(name: str) -> None:
    policy = terse(name, max_new_tokens=LENGTH)
    rollout = conversation(policy, name)
    assert max(len(sample.turn_ends) for sample in rollout.samples) == 3
    assert all(sample.environment_error is None for sample in rollout.samples)
    with torch.no_grad():
        expected_BT = torch.stack([plain_logprobs(policy, rollout, row) for row in range(6)])
    assert largest_difference(rollout.old_logprob_BT, expected_BT, rollout.mask_BT) < 1e-5
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-5


@pytest.mark.parametrize("name", daily([name for name in FAMILIES if name not in REWRITING], "qwen2.5-vl", "gemma3"))
def test_tokens_are_those_of_the_template_for_the_complete_conversation(name: str) -> None:
    policy = terse(name, max_new_tokens=LENGTH)
    rollout = conversation(policy, name)
    ends = set(policy._end_ids.tolist())
    for row, sample in enumerate(rollout.samples):
        tokens = list(sample.tokens or ())
        spans = zip(sample.turn_starts, sample.turn_ends, strict=True)
        answers = [policy._tokenizer.decode([t for t in tokens[start:end] if t not in ends]) for start, end in spans]
        row_L, template_L = row_ids(policy, rollout, row), processed(policy, rollout, row, answers)["input_ids"][0]
        expected_L = template_L[: len(row_L)]
        assert bool(((row_L == expected_L) | torch.isin(row_L, policy._end_ids)).all())  # any end token may end a turn


@every_family
def test_gradients_are_those_of_a_plain_call(name: str) -> None:
    policy = terse(name, max_new_tokens=LENGTH)
    rollout = conversation(policy, name)
    move(policy.trainable)
    gradient_parts = gradients(policy, rollout)
    weight_BT = torch.randn(rollout.shape, generator=torch.Generator().manual_seed(3))  # as gradients() weighs
    total = sum((weight_BT[row] * plain_logprobs(policy, rollout, row)).sum() for row in range(len(rollout.samples)))
    assert isinstance(total, Tensor)
    expected = torch.autograd.grad(total, policy.trainable, allow_unused=True)
    pairs = [(ours, theirs) for ours, theirs in zip(gradient_parts, expected, strict=True) if theirs is not None]
    assert relative_difference([ours for ours, _ in pairs], [theirs for _, theirs in pairs]) < 1e-5


def test_samples_are_read_as_they_were_sampled() -> None:
    policy = terse("qwen2.5-vl", max_new_tokens=LENGTH)
    rollout = conversation(policy, "qwen2.5-vl")
    read = policy.read([OffPolicySample(sample=sample) for sample in rollout.samples], seed=0)
    assert torch.equal(read.mask_BT, rollout.mask_BT)
    assert largest_difference(read.old_logprob_BT, rollout.old_logprob_BT, rollout.mask_BT) < 1e-5


def test_rows_do_not_depend_on_their_batch() -> None:
    single, together = (terse("qwen2.5-vl", max_new_tokens=LENGTH, batch=batch) for batch in (1, 64))
    rollouts = [conversation(policy, "qwen2.5-vl") for policy in (single, together)]
    assert [sample.tokens for sample in rollouts[0].samples] == [sample.tokens for sample in rollouts[1].samples]


def test_images_of_each_turn_have_the_tiles_that_they_have_alone() -> None:
    """One image is tiled, several are not: the processor gets one list of images for each turn."""
    policy = terse("llava-onevision", max_new_tokens=LENGTH)
    rollout = conversation(policy, "llava-onevision")
    trace: Any = rollout.trace
    expected = [[1, 1, 2], [2, 1, 2]]  # images of the prompt, of the first answer, of the second one
    grouped = [trace.prompts[trace.prompt_of_B[row]].media["batch_num_images"].tolist() for row in (0, 3)]
    assert grouped == expected


def test_placeholders_that_differ_from_those_of_the_turns_are_an_error() -> None:
    policy = terse("llava-onevision", max_new_tokens=LENGTH)
    encoded, token_T = policy._encoder(prompts_of("llava-onevision")[0]), policy._end_ids[:1]
    turn = Turn(text="two", images=[picture(16, 24)])
    reason = "turn by turn they take 36 placeholders, together 82, as where one image is tiled"
    with pytest.raises(PolicyError, match=rf"media of a later turn .* {reason} .*; show them in the prompt"):
        policy._encoder.with_media_turn(encoded, turn, token_T, EncodedReply(token_T))


PLACEHOLDER = "<|image_pad|>"
ODD_TURNS = {
    "a placeholder and an image": (
        Turn(text=PLACEHOLDER, images=[picture(16, 24)]),
        "which the processor would take for a placeholder",
    ),
    "an end in a result with an image": (
        Turn(role="tool", images=[picture(16, 24)], results=[ToolResult("look", "two <|im_end|>", 1)]),
        "or the end of a turn: remove it from the text",
    ),
    "a line": (Turn(text="two", images=[Image.new("RGB", (1, 1000))]), "absolute aspect ratio must be smaller"),
    "a video of numbers": (Turn(text="two", videos=[1]), "cannot be read"),
}


@pytest.mark.parametrize(("turn", "error"), ODD_TURNS.values(), ids=ODD_TURNS)
def test_a_turn_that_the_processor_cannot_take_costs_its_row(turn: Turn, error: str) -> None:
    numbers = count()

    @final
    class Odd(Environment):
        def __init__(self) -> None:
            self.is_odd = next(numbers) == 1

        def reset(self, prompt: Prompt) -> Turn:
            return Turn()

        def step(self, text: str) -> Turn:
            return turn if self.is_odd else Turn(text="two red")

    policy = terse("qwen2.5-vl", max_new_tokens=120)
    plan = Plan(environment=Odd, max_turns=2)
    samples = policy.rollout(prompts_of("qwen2.5-vl")[:1], group_size=3, seed=SEED, plan=plan).samples
    odd, *others = sorted(samples, key=lambda sample: sample.environment_error is None)  # made side by side: any row
    assert error in (odd.environment_error or "")
    assert [sample.environment_error for sample in others] == [None, None]
    assert [len(sample.turn_ends) for sample in (odd, *others)] == [1, 2, 2]


@pytest.mark.parametrize(
    "turn",
    [Turn(text=f"two {PLACEHOLDER}"), Turn(role="tool", results=[ToolResult("look", f"two {PLACEHOLDER}")])],
    ids=["text", "result"],
)
def test_a_placeholder_without_a_medium_is_its_characters(turn: Turn) -> None:
    @final
    class Placeholder(Environment):
        def reset(self, prompt: Prompt) -> Turn:
            return Turn()

        def step(self, text: str) -> Turn:
            return turn

    policy = terse("qwen2.5-vl", max_new_tokens=120)
    plan = Plan(environment=Placeholder, max_turns=2)
    rollout = policy.rollout(prompts_of("qwen2.5-vl")[:1], group_size=3, seed=SEED, plan=plan)
    placeholder = policy._tokenizer.convert_tokens_to_ids(PLACEHOLDER)
    for sample in rollout.samples:
        assert sample.environment_error is None
        between = list(sample.tokens or ())[sample.turn_ends[0] : sample.turn_starts[1]]
        assert placeholder not in between
        assert f"two {PLACEHOLDER}" in policy._tokenizer.decode(between)
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-5
