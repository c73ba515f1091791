"""Decoding in slots: numbers of a row that other rows do not change, slots that refill, conversations that stay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.forward_paths import CachedPath
from mmgrpo.policies.language.language_outline import language_outline
from mmgrpo.policies.language.settings import LanguageSettings
from mmgrpo.policies.language.slots import ROWS, Slots, left_aligned
from mmgrpo.policies.prefix import cache_argument
from torch import Tensor

from mmgrpo.environment import Environment, Turn
from mmgrpo.types import Plan, Prompt, Rollout
from tests.policies.families import daily, families
from tests.policies.test_language_exchanges import Asking, terse
from tests.policies.tiny_language import TEMPERATURE, picture, policy_of, prompts_of
from tests.tiny.language_models import TINY, make

SEED = 3
GROUP_SIZE = 5
NO_SLOTS = {"qwen3.5", "qwen3.5-vl"}  # states of linear attention


@final
class Slow(Environment):
    """Answers three turns; some rows after a moment, in another order each time that ``rank`` changes.

    The number of a row is the length of its first turn.
    """

    rank: int = 1
    images: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self._number, self._num_steps = 0, 0

    def reset(self, prompt: Prompt) -> Turn:
        return Turn()

    def step(self, text: str) -> Turn:
        self._num_steps += 1
        self._number = self._number or len(text)
        time.sleep(0.03 * (self._number * self.rank % 7))
        images = self.images if self._number % 3 == 0 and self._num_steps == 1 else ()
        return Turn(text="two red", images=images, done=self._num_steps == 3)


@contextmanager
def tokens_of_forwards(policy: LanguagePolicy) -> Iterator[list[tuple[int, int]]]:
    """Records rows and tokens of every forward of the decoder."""
    shapes: list[tuple[int, int]] = []

    def record(module: Any, args: Any, output: Any) -> None:
        shapes.append(tuple(output.last_hidden_state.shape[:2]))

    handle = policy.model.get_decoder().register_forward_hook(record)
    try:
        yield shapes
    finally:
        handle.remove()


def assert_identical(first: Rollout, second: Rollout) -> None:
    assert [sample.tokens for sample in first.samples] == [sample.tokens for sample in second.samples]
    assert [sample.turn_ends for sample in first.samples] == [sample.turn_ends for sample in second.samples]
    assert torch.equal(first.old_logprob_BT, second.old_logprob_BT)


def num_bytes(cache: Any) -> int:
    """Bytes of the storages of a cache; without those of layers that a forward does not change, as in updates."""
    tensors = [x for layer in cache.layers for x in (layer.keys, layer.values) if x is not None]
    return sum(storage.nbytes() for storage in {x.data_ptr(): x.untyped_storage() for x in tensors}.values())


def path_of(policy: LanguagePolicy) -> CachedPath:
    """The path of the first prompt, which decodes in slots."""
    path = policy._path_for([policy._encoder(prompts_of("llama")[0])])
    assert isinstance(path, CachedPath)
    assert path.slots
    return path


@torch.no_grad()
def states_in_slot(
    policy: LanguagePolicy, name: str, slot: int, neighbors: dict[int, int], *, num_slots: int = 4
) -> Tensor:
    """The states of the first prompt's row in a slot: of its prompt, four tokens one by one, and three at once.

    Args:
        policy: the policy.
        name: its family.
        slot: the slot.
        neighbors: number of tokens after the second prompt, by slot.
        num_slots: number of slots.

    Returns:
        (6, D), and as many logits of the next token.
    """
    encoded = [policy._encoder(prompt) for prompt in prompts_of(name)]
    path = policy._path_for(encoded)
    assert isinstance(path, CachedPath)
    assert path.slots
    first, second = (left_aligned(path.transformer.prefill([prompt], max_tokens=9999)) for prompt in encoded)
    slots = Slots(path.transformer, num_slots)
    slots.put([slot], first, [0])
    for neighbor, num_tokens in neighbors.items():
        slots.put([neighbor], second, [0])
        slots.read({neighbor: torch.arange(num_tokens) % 9 + 60})

    def state() -> Tensor:
        return torch.cat([slots.hidden_SD[slot], slots.logits([*neighbors, slot])[-1]])

    states = [state()]
    for number in range(4):
        token_S = torch.arange(num_slots) % 9 + 60 + number
        token_S[slot] = 65 + number
        slots.extend(token_S, [slot, *neighbors])
        states.append(state())
    slots.read({slot: torch.tensor([61, 62, 63])})
    return torch.stack([*states, state()])


@pytest.mark.first_case
@pytest.mark.parametrize("name", families("language", sorted(set(TINY) - NO_SLOTS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_numbers_of_a_row_are_bitwise_independent_of_other_slots(name: str, dtype: torch.dtype) -> None:
    model, processor = make(name)
    model.to(dtype)  # pyrefly: ignore[bad-argument-type]
    policy = LanguagePolicy(model, processor, {"max_new_tokens": 7, "temperature": TEMPERATURE})
    alone = states_in_slot(policy, name, 0, {})
    assert torch.equal(states_in_slot(policy, name, 0, {1: 3, 2: 90, 3: 40}), alone)
    assert torch.equal(states_in_slot(policy, name, 2, {0: 200, 3: 1}), alone)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_numbers_of_a_row_are_bitwise_independent_of_the_number_of_rows_that_run(dtype: torch.dtype) -> None:
    """Of 40 slots 16, 32 or all run; the slot of the row is after the first 32, so that it moves."""
    assert torch.get_num_threads() == 1  # several divide a matrix product by its number of rows
    model, processor = make("llama")
    model.to(dtype)  # pyrefly: ignore[bad-argument-type]
    policy = LanguagePolicy(model, processor, {"max_new_tokens": 7, "temperature": TEMPERATURE})
    alone = states_in_slot(policy, "llama", 37, {}, num_slots=40)
    for others in (15, 16, 31, 37):
        neighbors = {slot: 1 + 3 * slot % 70 for slot in range(others)}
        assert torch.equal(states_in_slot(policy, "llama", 37, neighbors, num_slots=40), alone)


@pytest.mark.first_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("context", [0, 40, 900])
@torch.no_grad()
def test_slots_read_together_with_the_numbers_of_each_alone(dtype: torch.dtype, context: int) -> None:
    """Seven rows of several lengths: six read up to 16 tokens, four and two of them in a forward, and one reads 20."""
    model, processor = make("llama")
    model.to(dtype)  # pyrefly: ignore[bad-argument-type]
    policy = LanguagePolicy(model, processor, {"max_new_tokens": 7, "temperature": TEMPERATURE})
    encoded = policy._encoder(prompts_of("llama")[0])
    transformer = path_of(policy).transformer
    prefix = left_aligned(transformer.prefill([encoded], max_tokens=9999))
    lengths = (3, 16, 20, 1, 8, 5, 11)
    tokens_of = {slot: (torch.arange(length) + slot) % 9 + 60 for slot, length in enumerate(lengths)}
    states = []
    for groups in ([[*tokens_of]], [[slot] for slot in reversed(tokens_of)]):
        slots = Slots(transformer, len(lengths))
        slots.put([*tokens_of], prefix, [0] * len(lengths))
        for slot in tokens_of if context else ():
            slots.read({slot: torch.arange(context + slot) % 9 + 60})
        for group in groups:
            with tokens_of_forwards(policy) as shapes:
                slots.read({slot: tokens_of[slot] for slot in group})
        if len(groups) == 1:
            assert [shape for shape in shapes if shape not in ((4, 16), (2, 16))][-1:] == [(1, 32)]  # pyrefly: ignore[unbound-name]
            assert {(4, 16), (2, 16), (1, 32)} <= set(shapes)
        assert slots.num_stored == [
            encoded.length + (context + slot) * bool(context) + n for slot, n in enumerate(lengths)
        ]
        slots.extend(torch.full((7,), 65), [*tokens_of])
        states.append(slots.hidden_SD)
    assert torch.equal(*states)


def test_idle_slots_do_not_run_in_multiples_of_sixteen() -> None:
    policy = terse("llama", rollout_batch=40, max_new_tokens=60)
    prompts = [Prompt("what number is this")]
    policy.rollout(prompts, group_size=40, seed=SEED)  # checks the path, and the numbers of fewer rows
    policy._verified.length = 10**6
    with tokens_of_forwards(policy) as shapes:
        rollout = policy.rollout(prompts, group_size=40, seed=SEED)
    lengths = [len(sample.tokens or ()) for sample in rollout.samples]
    unfinished = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert min(unfinished) < 16 < 32 < max(unfinished)
    expected = [(min(-(-num // 16) * 16, 40), 1) for num in unfinished]
    assert shapes == [(1, policy._encoder(prompts[0]).length), *expected]


@pytest.mark.parametrize("name", families("language", TINY))
def test_samples_in_slots_are_those_of_batches(name: str) -> None:
    """Four slots for ten rows of two prompts, against a batch that ends with its longest row."""
    in_slots, in_batches = policy_of(name, batch=4, max_new_tokens=12), policy_of(name, batch=4, max_new_tokens=12)
    selector = in_batches._selector
    selector._candidates = [path for path in selector._candidates if not path.slots]
    ours, theirs = (p.rollout(prompts_of(name), group_size=GROUP_SIZE, seed=SEED) for p in (in_slots, in_batches))
    assert getattr(in_slots.path, "slots", False) == (name not in NO_SLOTS)
    assert [sample.tokens for sample in ours.samples] == [sample.tokens for sample in theirs.samples]
    torch.testing.assert_close(ours.old_logprob_BT, theirs.old_logprob_BT, rtol=0, atol=2e-6)


def test_a_finished_row_leaves_its_slot_to_the_next_row() -> None:
    policy = terse("llama", rollout_batch=3, max_new_tokens=60)
    prompts = [Prompt("what number is this")]
    policy.rollout(prompts, group_size=1, seed=SEED)  # checks the path
    policy._verified.length = 10**6
    with tokens_of_forwards(policy) as shapes:
        rollout = policy.rollout(prompts, group_size=12, seed=SEED)
    lengths = [len(sample.tokens or ()) for sample in rollout.samples]
    assert max(lengths) > 4 * min(lengths)
    ends = [0, 0, 0]  # tokens that have been written when each slot is free; rows enter in their order
    for length in lengths:
        ends[ends.index(min(ends))] += length
    assert shapes == [(1, policy._encoder(prompts[0]).length)] + [(3, 1)] * (max(ends) - 1)
    in_batches = sum(max(lengths[first : first + 3]) for first in range(0, 12, 3))
    assert max(ends) < 0.8 * in_batches
    with tokens_of_forwards(policy) as shapes:
        policy.rollout(prompts, group_size=2, seed=SEED)
    assert {shape for shape in shapes if shape[1] == 1} == {(2, 1)}  # as many slots as rows


@pytest.mark.nightly
@pytest.mark.each_value
@pytest.mark.parametrize("rollout_batch", [8, 3], ids=["a slot each", "three slots"])
@pytest.mark.parametrize("name", ["llama", "qwen2.5-vl"])
def test_samples_of_conversations_do_not_depend_on_the_order_of_answers(
    name: str, rollout_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slow, "images", (picture(),) if TINY[name].images else ())
    policy, rollouts = terse(name, rollout_batch=rollout_batch, max_new_tokens=60), []
    for workers, rank in ((1, 0), (32, 3), (32, 5), (2, 4)):
        monkeypatch.setattr(Slow, "rank", rank)
        plan = Plan(environment=Slow, environment_workers=workers, max_turns=3)
        rollouts.append(policy.rollout(prompts_of(name), group_size=4, seed=SEED, plan=plan))
    assert max(len(sample.turn_ends) for sample in rollouts[0].samples) == 3
    have_images = {bool(turn and turn.num_media) for sample in rollouts[0].samples for turn in sample.turn_replies}
    assert have_images == ({True, False} if TINY[name].images else {False})
    for rollout in rollouts[1:]:
        assert_identical(rollout, rollouts[0])


@pytest.mark.nightly
@pytest.mark.parametrize("images", [(), (picture(),)], ids=["text", "image"])
def test_turns_continue_the_cache_where_every_row_has_a_slot(images: tuple[Any, ...]) -> None:
    """Of a turn with an image the processor makes the tensors of all images at once: its row is read again."""
    prompts, plan = prompts_of("qwen2.5-vl")[:1], Plan(environment=lambda: Asking(images=images), max_turns=3)
    reads = {}
    for rollout_batch in (4, 3):
        policy = terse("qwen2.5-vl", rollout_batch=rollout_batch, max_new_tokens=80)
        policy.rollout(prompts, group_size=1, seed=SEED, plan=plan)
        policy._verified.length, policy._verified.kinds = 10**6, {*policy._verified.kinds}
        path: Any = policy.path
        for num_rows in (2, 4):
            path.transformer.is_invariant(1, num_rows, ROWS)  # runs its trial
        with tokens_of_forwards(policy) as shapes:
            rollout = policy.rollout(prompts, group_size=4, seed=SEED, plan=plan)
        reads[rollout_batch] = sorted(num for num_rows, num in shapes for _ in range(num_rows) if num > 1)
    length = policy._encoder(prompts[0]).length
    turns = [pair for s in rollout.samples for pair in zip(s.turn_ends[:-1], s.turn_starts[1:], strict=True)]
    assert len(turns) >= 4
    again = sorted([length, *(length + start for _, start in turns)])  # and the prompt, once for all rows
    continued = sorted([length, *(-(-(start - end + 1) // ROWS) * ROWS for end, start in turns)])  # with the end token
    assert reads == {4: again if images else continued, 3: again}


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(["llama", "mistral", "gemma2"], "gemma2"))
def test_the_predicted_memory_is_that_of_slots(name: str, tmp_path: Path) -> None:
    """Layers of sliding windows store all tokens; prompts of waiting rows run while the slots exist."""
    model, processor = make(name)
    tokenizer: Any = processor
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    settings = {"max_new_tokens": 400, "rollout_batch": 4, "suppress": [tokenizer.eos_token_id]}
    policy, measured = LanguagePolicy(model, tokenizer, settings), []

    def record(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        cache = kwargs.get(cache_argument(module))
        measured.append(0 if cache is None else num_bytes(cache))

    handle = policy.model.get_decoder().register_forward_hook(record, with_kwargs=True)
    prompt = Prompt("what number is this")
    policy.rollout([prompt], group_size=4, seed=SEED)
    handle.remove()
    predicted = {}
    for num_rows in (4, 8):
        outline = language_outline(
            LanguageSettings(**{**settings, "model": str(tmp_path)}),
            prompt_tokens=policy._encoder(prompt).length,
            group_size=4,
            num_rows=num_rows,
        )
        prefill, step, _ = outline.rollout
        predicted[num_rows] = num_bytes(step.prepare())
        assert (prefill.prepare() is None) == (num_rows == 4)
    assert max(measured) <= predicted[4] == predicted[8] <= 1.25 * max(measured)
