"""A vision-language model calls the zoom tool in a rollout: its image, the next turn's row, and log-probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mmgrpo.examples import tiny_digits
from mmgrpo.examples.language_models import zoom_vlm
from mmgrpo.policies.language import LanguagePolicy
from PIL import Image

from mmgrpo.environments.image_tools import ImageToolsEnvironment
from mmgrpo.tool_calls import calls_in
from mmgrpo.types import Example, Plan, Rollout, Sample
from tests.policies.contract import largest_difference, values
from tests.policies.test_language_media_turns import plain_inputs, plain_logprobs, processed

NUM_STEPS = 60


def zooming() -> ImageToolsEnvironment:
    return ImageToolsEnvironment(min_side=8, reply="", describe=False)


@pytest.fixture(scope="module")
def policy() -> LanguagePolicy:
    """A policy that has learned the calls of two questions, and no answers."""
    policy = LanguagePolicy(*zoom_vlm(), {"max_new_tokens": 32, "temperature": 0.5})
    examples = [Example(prompt, tiny_digits.call_of(prompt.columns["box"])) for prompt in questions()]
    optimizer = torch.optim.AdamW(policy.trainable, lr=3e-3)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        policy.supervised_loss(examples, seeds=[0, 0]).mean.backward()
        optimizer.step()
    return policy


def questions() -> list[tiny_digits.Prompt]:
    first, *others = tiny_digits.questions(copies=1)
    return [first, next(prompt for prompt in others if prompt.columns["box"] != first.columns["box"])]


@pytest.fixture(scope="module")
def rollout(policy: LanguagePolicy) -> Rollout:
    plan = Plan(environment=zooming, max_turns=2)
    return policy.rollout(questions(), group_size=1, seed=0, plan=plan)


def boxes(sample: Sample) -> list[list[int]]:
    return [call.arguments["bbox_2d"] for turn in sample.turn_texts for call in calls_in(turn)]


@pytest.mark.nightly
def test_calls_are_answered_with_the_region(rollout: Rollout) -> None:
    for sample in rollout.samples:
        assert boxes(sample)[0] == list(sample.prompt.columns["box"])
        assert len(sample.turn_texts) == 2
        reply = sample.turn_replies[0]
        assert reply is not None
        expected = sample.prompt.images[0].convert("RGB").crop(sample.prompt.columns["box"])
        assert np.array_equal(np.asarray(reply.images[0]), np.asarray(expected))
    assert tiny_digits.right_zoom(rollout.samples) == tiny_digits.called(rollout.samples) == [1.0, 1.0]


@pytest.mark.nightly
def test_rows_after_a_zoom_are_scored_as_by_a_plain_call(policy: LanguagePolicy, rollout: Rollout) -> None:
    with torch.no_grad():
        expected_BT = torch.stack([plain_logprobs(policy, rollout, row) for row in range(2)])
    assert largest_difference(rollout.old_logprob_BT, expected_BT, rollout.mask_BT) < 1e-5
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-5


def test_the_next_turn_depends_on_the_region(policy: LanguagePolicy, rollout: Rollout) -> None:
    (sample, *_), answers = rollout.samples, ["x"] * 2
    reply = sample.turn_replies[0]
    assert reply is not None
    features = processed(policy, rollout, 0, answers)["pixel_values"]
    alone = policy.processor.image_processor(images=list(reply.images), return_tensors="pt")["pixel_values"]
    assert torch.equal(features[-16:], alone)
    black = replace(reply, images=[Image.new("RGB", (8, 8))])
    blackened = replace(sample, turn_replies=[black, *sample.turn_replies[1:]])
    changed = replace(rollout, samples=[blackened, *rollout.samples[1:]])
    with torch.no_grad():
        logits_TV, other_TV = (
            policy.model(**plain_inputs(policy, each, 0)).logits[0, -len(sample.tokens or ()) :]
            for each in (rollout, changed)
        )
    difference_T, end = (logits_TV - other_TV).abs().amax(-1), sample.turn_ends[0]
    assert float(difference_T[:end].max()) < 1e-5
    assert float(difference_T[-1]) > 1e-3


def test_demonstrations_have_the_tokens_of_rollouts(policy: LanguagePolicy) -> None:
    """The prompt of an answer after a zoom is the row that a rollout makes of the call and its result."""
    for first, second in zip(
        *[iter(tiny_digits.examples(called=1.0, misplaced=0.5, zoomed=1.0, copies=1)[:8])] * 2, strict=True
    ):
        environment = zooming()
        environment.reset(first.prompt)
        reply = environment.step(first.text or "")
        encoder, ends = policy._encoder, policy._end_ids.tolist()
        row = [
            *encoder(first.prompt).ids_P.tolist(),
            *encoder.encode_text(first.text or "").tolist(),
            encoder.end_id(ends),
            *encoder.encode_reply(reply, prompt=first.prompt, end_ids=ends).token_T.tolist(),
        ]
        assert encoder(second.prompt).ids_P.tolist() == row
        image = second.prompt.images[1].convert("RGB")
        assert np.array_equal(np.asarray(reply.images[0]), np.asarray(image))


def test_right_zooms_contain_the_digit() -> None:
    prompt = questions()[0]
    left, top, right, bottom = prompt.columns["box"]
    boxes_rights = [
        ((left, top, right, bottom), 1.0),
        ((left - 4, top - 4, right + 4, bottom + 4), 1.0),
        ((left - 8, top - 8, right + 8, bottom + 8), 0.0),  # nine times its area
        ((left + 1, top, right + 1, bottom), 0.0),
    ]
    for box, is_right in boxes_rights:
        assert tiny_digits.right_zoom([Sample(prompt, 0, 0, turn_texts=[tiny_digits.call_of(box)])]) == [is_right]
    for text in ("<answer>7</answer>", "<tool_call>zoom</tool_call>", tiny_digits.call_of(("a", 0, 1, 2))):  # pyrefly: ignore[bad-argument-type]
        assert tiny_digits.right_zoom([Sample(prompt, 0, 0, turn_texts=[text])]) == [0.0]
    assert tiny_digits.called([Sample(prompt, 0, 0, turn_texts=["<answer>7</answer>"])]) == [0.0]


def test_right_zoom_shows_the_complete_digit_in_a_small_region() -> None:
    prompt = tiny_digits.questions(1, 0)[0]
    x0, y0, x1, y1 = prompt.columns["box"]
    boxes = [(x0, y0, x1, y1), (x0 + 1, y0, x1, y1), (0, 0, 10_000, 10_000)]
    samples = [
        Sample(prompt=prompt, group=0, member=member, text="", turn_texts=(tiny_digits.call_of(box), "4"))
        for member, box in enumerate(boxes)
    ]
    silent = Sample(prompt=prompt, group=0, member=3, text="4", turn_texts=("4",))
    assert tiny_digits.right_zoom([*samples, silent]) == [1.0, 0.0, 0.0, 0.0]
    assert tiny_digits.called([*samples, silent]) == [1.0, 1.0, 1.0, 0.0]
