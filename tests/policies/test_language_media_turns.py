"""Images, videos and audio in later turns of a conversation: tokens, media tensors, log-probabilities and gradients of
each row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, final

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.audio_inputs import rate_of
from mmgrpo.policies.language.encoding import EncodedReply
from PIL import Image
from qwen_vl_utils.vision_process import fetch_video
from torch import Tensor

from mmgrpo.data.audio_loading import resample_audio
from mmgrpo.data.replies import plain_reply, reply_of
from mmgrpo.data.videos import clip_of_video
from mmgrpo.environment import Environment, Turn
from mmgrpo.errors import DataError, PolicyError
from mmgrpo.samples import ToolResult
from mmgrpo.types import Audio, OffPolicySample, Plan, Prompt, Rollout, Video
from tests.audio_signals import tone
from tests.data.test_videos import write_video
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values
from tests.policies.families import daily
from tests.policies.test_language_exchanges import SEED, terse
from tests.policies.test_language_sounds import PROMPTS, hearing
from tests.policies.tiny_language import picture, prompts_of
from tests.tiny.language_models import SEVERAL_IMAGES, TINY, VIDEOS

FAMILIES = tuple(name for name in SEVERAL_IMAGES if name != "paligemma")
REWRITING = ("idefics3", "llava-next", "llava-onevision")
"""Families whose template trims an answer, or writes other white space before it than before one that is sampled."""
LENGTH = 400


@final
@dataclass
class Showing(Environment):
    """Answers each turn with media, whose sizes and contents depend on the turn and the text of the policy."""

    turns: int = 3
    kinds: Sequence[str] = ("images",)
    by_tools: bool = False
    videos: Sequence[Any] = ()
    num_steps: int = 0

    def reset(self, prompt: Prompt) -> Turn:
        return Turn()

    def step(self, text: str) -> Turn:
        self.num_steps += 1
        if self.num_steps == self.turns:
            return Turn(done=True, reward=1.0)
        seeds = [sum(map(ord, text)) + n for n in range(self.num_steps)]
        media: dict[str, Any] = {
            kind: [MEDIA[kind](number, seed) for number, seed in enumerate(seeds)] for kind in self.kinds
        }
        if self.videos:
            media["videos"] = list(self.videos[: len(seeds)])
        if not self.by_tools:
            return Turn(text="two red", **media)
        counts: dict[str, Any] = {f"num_{kind}": 1 for kind in self.kinds}
        results = [ToolResult(f"look{number}", "two red", **counts) for number in range(self.num_steps)]
        return Turn(role="tool", results=results, text="two red", **media)


def image_at(number: int, seed: int) -> Image.Image:
    return picture(*[(16, 24), (24, 16)][number], seed=seed)


def video_at(number: int, seed: int) -> Video:
    """Four frames, as some processors take videos of one number of frames alone, at other rates than that of a list."""
    return Video([picture(32, 32, seed=seed + n) for n in range(4)], frame_rate=[4.0, 1.0][number])


def audio_at(number: int, seed: int) -> Audio:
    return tone(200.0 + seed % 1000, rate=[8000, 4000][number], duration_s=0.4)


MEDIA = {"images": image_at, "videos": video_at, "audios": audio_at}
PARTS = {"images": "image", "videos": "video", "audios": "audio"}
OMNI = ("qwen2.5-omni, sound", "qwen3-omni, sound")
EQUAL = ("qwen3-omni, sound", "phi-4-multimodal, sound")
"""Families whose features of audio depend on the longest audio of a conversation."""
CASES = [
    *((name, ("videos",)) for name in VIDEOS),
    *((name, ("audios",)) for name in ("qwen2-audio", *OMNI, "phi-4-multimodal, sound")),
    ("qwen3-vl", ("images", "videos")),
    *((name, ("images", "videos", "audios")) for name in OMNI),
]
"""Families, and kinds of media in their turns."""
IMAGE_CASES = [(name, ("images",)) for name in FAMILIES]
every_case = pytest.mark.parametrize(
    ("name", "kinds"),
    daily(
        [*IMAGE_CASES, *CASES],
        *((name, ("images",)) for name in ("qwen2.5-vl", "llava-next", "gemma3")),
        *(("qwen3-vl", ("images", "videos")), ("qwen2-audio", ("audios",))),
    ),
)


def policy_for(name: str) -> LanguagePolicy:
    if name in TINY:
        return terse(name, max_new_tokens=LENGTH)
    size = {"video": {"resized_height": 32, "resized_width": 32}} if name in OMNI else {}
    return terse(name, make=hearing, max_new_tokens=LENGTH, **size)


def prompts_for(name: str) -> list[Prompt]:
    if name in TINY:
        return prompts_of(name)
    return [replace(prompt, audios=[audio_at(0, 1)]) for prompt in PROMPTS] if name in EQUAL else PROMPTS


def conversation(policy: LanguagePolicy, name: str, kinds: Sequence[str] = ("images",), **settings: Any) -> Rollout:
    """Rows with media in every turn; audio of equal duration where the features depend on the longest."""
    plan = Plan(environment=partial(Showing, kinds=kinds, **settings))
    return policy.rollout(prompts_for(name), group_size=3, seed=SEED, plan=plan)


def messages_of(
    rollout: Rollout, row: int, answers: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """The row's conversation with these answers, and its media by kind."""
    sample = rollout.samples[row]
    messages: list[dict[str, Any]] = []
    media: dict[str, list[Any]] = {kind: [] for kind in PARTS}

    def add(role: str, source: Prompt | Turn) -> None:
        parts = []
        for kind, part in PARTS.items():
            media[kind] += getattr(source, kind)
            parts += [{"type": part} for _ in getattr(source, kind)]
        messages.append({"role": role, "content": [*parts, {"type": "text", "text": source.text}]})

    add("user", sample.prompt)
    for answer, end, reply in zip(answers, sample.turn_ends, sample.turn_replies, strict=True):
        messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
        if end < len(sample.tokens or ()):
            assert reply is not None
            for part in reply.result_turns or [reply]:
                add(reply.role, part)
    return messages, media


def arguments_of(policy: LanguagePolicy, media: dict[str, list[Any]]) -> dict[str, Any]:
    """Media as arguments of the processor: videos with their rates, as transformers takes them, audio at its rate."""
    arguments: dict[str, Any] = {"images": [media["images"]]} if media["images"] else {}
    if media["videos"]:
        patch = getattr(policy.processor.video_processor, "patch_size", 14)
        fetched = [
            fetch_video(
                {"video": list(video), "sample_fps": video.frame_rate, **policy.settings.video},
                return_video_metadata=True,
                image_patch_size=patch if isinstance(patch, int) else 14,
            )
            for video in media["videos"]
        ]
        arguments["videos"] = [[frames for frames, _ in fetched]]
        arguments["video_metadata"] = [[metadata for _, metadata in fetched]]
        arguments["do_sample_frames"] = False
        arguments |= {"videos_kwargs": {"do_resize": False}} if policy.settings.video else {}
    if media["audios"]:
        rate = rate_of(policy.processor)
        assert rate is not None
        arguments["audio"] = [resample_audio(audio, rate).values[0].numpy() for audio in media["audios"]]
        arguments["audio_kwargs"] = {"sampling_rate": rate}
    return arguments


def processed(policy: LanguagePolicy, rollout: Rollout, row: int, answers: Sequence[str]) -> dict[str, Tensor]:
    """The processor's encoding of the complete conversation with these answers; LLaVA-OneVision tiles turn by turn."""
    messages, media = messages_of(rollout, row, answers)
    text = policy.processor.apply_chat_template(messages, tokenize=False)
    arguments = arguments_of(policy, media)
    if "Onevision" in type(policy.processor).__name__ and media["images"]:
        rest, parts = iter(media["images"]), [message["content"] for message in messages]
        numbers = [sum(part["type"] == "image" for part in content) for content in parts]
        arguments["images"] = [list(islice(rest, number)) for number in numbers if number]
    inputs = dict(policy.processor(text=[text], return_tensors="pt", add_special_tokens=False, **arguments))
    if "video_second_per_grid" in inputs:  # the processor has one rate for all videos
        seconds = [2 / video.frame_rate for video in media["videos"]]
        inputs["video_second_per_grid"] = torch.tensor(seconds)
    return inputs


def row_ids(policy: LanguagePolicy, rollout: Rollout, row: int) -> Tensor:
    sample = rollout.samples[row]
    return torch.cat([policy._encoder(sample.prompt).ids_P, torch.tensor(sample.tokens)])


def plain_inputs(policy: LanguagePolicy, rollout: Rollout, row: int) -> dict[str, Tensor]:
    """The processor's tensors of the complete conversation for the row's tokens; types of tokens go by their ids."""
    inputs = processed(policy, rollout, row, ["x"] * len(rollout.samples[row].turn_ends))
    ids, row_L = inputs.pop("input_ids"), row_ids(policy, rollout, row)
    plain = {"input_ids": row_L[None], "attention_mask": torch.ones_like(row_L[None])}
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


def check_row_scores(policy: LanguagePolicy, rollout: Rollout) -> None:
    assert all(sample.environment_error is None for sample in rollout.samples)
    assert max(len(sample.turn_ends) for sample in rollout.samples) == 3
    with torch.no_grad():
        expected_BT = torch.stack([plain_logprobs(policy, rollout, row) for row in range(6)])
    assert largest_difference(rollout.old_logprob_BT, expected_BT, rollout.mask_BT) < 1e-5
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-5


@pytest.mark.first_case
@every_case
def test_rows_with_media_in_every_turn_are_scored_as_by_a_plain_call(name: str, kinds: Sequence[str]) -> None:
    policy = policy_for(name)
    rollout = conversation(policy, name, kinds)
    check_row_scores(policy, rollout)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "kinds"),
    daily(
        [("qwen3-vl", ("images", "videos")), ("qwen2-audio", ("audios",)), (OMNI[0], ("images", "videos", "audios"))],
        (OMNI[0], ("images", "videos", "audios")),
    ),
)
def test_results_with_media_are_scored_as_by_a_plain_call(name: str, kinds: Sequence[str]) -> None:
    policy = policy_for(name)
    check_row_scores(policy, conversation(policy, name, kinds, by_tools=True))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl"])
def test_video_files_of_results_are_rows_of_their_frames_at_their_rate(name: str, tmp_path: Path) -> None:
    """A plain call checks the rows of frames with a rate."""
    policy = policy_for(name)
    paths = [write_video(tmp_path / f"{number}.mp4", 4, size=(32, 32), rate=rate) for number, rate in enumerate((4, 1))]
    for files in ([str(path) for path in paths], [path.read_bytes() for path in paths]):
        rollouts = [
            conversation(policy, name, ("videos",), by_tools=True, videos=videos)
            for videos in (files, [clip_of_video(file) for file in files])
        ]
        check_row_scores(policy, rollouts[1])
        assert [sample.tokens for sample in rollouts[0].samples] == [sample.tokens for sample in rollouts[1].samples]
        assert torch.equal(rollouts[0].old_logprob_BT, rollouts[1].old_logprob_BT)
        assert torch.equal(values(policy, rollouts[0]), values(policy, rollouts[1]))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "kinds"),
    daily(
        [case for case in (*IMAGE_CASES, *CASES) if case[0] not in REWRITING],
        *(("qwen2.5-vl", ("images",)), ("gemma3", ("images",)), ("qwen2-audio", ("audios",))),
    ),
)
def test_tokens_are_those_of_the_template_for_the_complete_conversation(name: str, kinds: Sequence[str]) -> None:
    policy = policy_for(name)
    rollout = conversation(policy, name, kinds)
    ends = set(policy._end_ids.tolist())
    for row, sample in enumerate(rollout.samples):
        tokens = list(sample.tokens or ())
        spans = zip(sample.turn_starts, sample.turn_ends, strict=True)
        answers = [policy._tokenizer.decode([t for t in tokens[start:end] if t not in ends]) for start, end in spans]
        row_L, template_L = row_ids(policy, rollout, row), processed(policy, rollout, row, answers)["input_ids"][0]
        expected_L = template_L[: len(row_L)]
        assert bool(((row_L == expected_L) | torch.isin(row_L, policy._end_ids)).all())  # any end token may end a turn


@pytest.mark.first_case
@every_case
def test_gradients_are_those_of_a_plain_call(name: str, kinds: Sequence[str]) -> None:
    policy = policy_for(name)
    rollout = conversation(policy, name, kinds)
    move(policy.trainable)
    gradient_parts = gradients(policy, rollout)
    weight_BT = torch.randn(rollout.shape, generator=torch.Generator().manual_seed(3))  # as gradients() weighs
    total = sum((weight_BT[row] * plain_logprobs(policy, rollout, row)).sum() for row in range(len(rollout.samples)))
    assert isinstance(total, Tensor)
    expected = torch.autograd.grad(total, policy.trainable, allow_unused=True)
    pairs = [(ours, theirs) for ours, theirs in zip(gradient_parts, expected, strict=True) if theirs is not None]
    assert relative_difference([ours for ours, _ in pairs], [theirs for _, theirs in pairs]) < 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "kinds", "by_tools"),
    [("qwen2.5-vl", ("images", "videos"), True), ("qwen2-audio", ("audios",), False)],
    ids=["videos", "audio"],
)
def test_samples_are_read_as_they_were_sampled(name: str, kinds: Sequence[str], by_tools: bool) -> None:
    policy = policy_for(name)
    rollout = conversation(policy, name, kinds, by_tools=by_tools)
    stored = [
        replace(sample, turn_replies=[reply_of(plain_reply(reply)) or reply for reply in sample.turn_replies])
        for sample in rollout.samples
    ]
    read = policy.read([OffPolicySample(sample=sample) for sample in stored], seed=0)
    assert torch.equal(read.mask_BT, rollout.mask_BT)
    assert largest_difference(read.old_logprob_BT, rollout.old_logprob_BT, rollout.mask_BT) < 1e-5


@pytest.mark.nightly
def test_features_that_depend_on_later_audio_are_an_error() -> None:
    policy = policy_for("phi-4-multimodal, sound")
    shorter = [Prompt("what is this", audios=[tone(440, duration_s=0.3)])]
    plan = Plan(environment=partial(Showing, kinds=("audios",)))
    with pytest.raises(PolicyError, match=r"the turns before the environment's last turn with media .*audio is padded"):
        policy.rollout(shorter, group_size=3, seed=SEED, plan=plan)


NUMBERED = (
    "{% set n = namespace(audio=0) %}{% for message in messages %}{{ message.role }} "
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'audio' %}{% set n.audio = n.audio + 1 %}"
    "Audio {{ n.audio }}: <|audio_bos|><|AUDIO|><|audio_eos|>\n"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}\n"
    "{% if message.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
"""Numbers audio, as the template of Qwen2-Audio does."""


@pytest.mark.nightly
def test_templates_that_number_media_count_those_of_earlier_turns() -> None:
    policy = policy_for("qwen2-audio")
    policy.processor.chat_template = NUMBERED
    rollout = conversation(policy, "qwen2-audio", ("audios",))
    texts = [policy._tokenizer.decode(sample.tokens) for sample in rollout.samples]
    for sample, text in zip(rollout.samples, texts, strict=True):
        first = len(sample.prompt.audios) + 1
        assert re.findall(r"Audio (\d+):", text) == [str(first + number) for number in range(3)]
    check_row_scores(policy, rollout)


@pytest.mark.nightly
def test_rows_do_not_depend_on_their_batch() -> None:
    single, together = (terse("qwen2.5-vl", max_new_tokens=LENGTH, batch=batch) for batch in (1, 64))
    rollouts = [conversation(policy, "qwen2.5-vl") for policy in (single, together)]
    assert [sample.tokens for sample in rollouts[0].samples] == [sample.tokens for sample in rollouts[1].samples]


@pytest.mark.nightly
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
    "a video of numbers": (Turn(text="two", videos=[1]), "a video of Turn.videos cannot be read: it is a int"),
    "a video of nothing": (Turn(text="two", videos=[[]]), "cannot be read: it has no frames"),
    "a video of text": (Turn(text="two", videos=[b"text"]), "cannot be opened as a video"),
    "audio of text": (Turn(text="two", audios=[b"text"]), "cannot be opened as audio"),
}


def test_a_kind_of_media_that_the_model_does_not_take_is_an_error_of_the_run() -> None:
    policy = terse("qwen2.5-vl", max_new_tokens=120)
    plan = Plan(environment=partial(Showing, kinds=("audios",)), max_turns=2)
    with pytest.raises(DataError, match="Qwen2_5_VLProcessor takes no audio; use one with audio input"):
        policy.rollout(prompts_of("qwen2.5-vl")[:1], group_size=2, seed=SEED, plan=plan)


@pytest.mark.first_case
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
