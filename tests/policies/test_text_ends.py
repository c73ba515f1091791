"""The end of each token in the text: compared with decoding every prefix, and by hand."""

# The bindings of `tokenizers` carry wrong annotations.

from __future__ import annotations

import pytest
from mmgrpo.policies.language.text_offsets import token_text_offsets
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mmgrpo.policy import SupportsTextOffsets
from mmgrpo.types import OffPolicySample, Sample
from tests.policies.tiny_language import policy_of, prompts_of


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2"])
def test_words_bytes_and_ends(name: str) -> None:
    policy = policy_of(name)
    assert isinstance(policy, SupportsTextOffsets)
    (prompt, _) = prompts_of(name)
    sample = policy.read([OffPolicySample(sample=Sample(prompt, 0, 0, text="red cat\nblue 漢 no"))], seed=0).samples[0]
    # red, " cat", newline, blue, space, three bytes of one character of which the first has it, " no", end
    assert policy.text_offsets(sample) == [3, 7, 8, 12, 13, 14, 14, 14, 17, 17]


def test_a_tokenizer_that_takes_the_first_space_away() -> None:
    words = {word: number for number, word in enumerate(["<unk>", "</s>", "▁one", "▁two", "▁three", "s"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")
    tokens = [2, 3, 5, 1, 4] * 3
    text = fast.decode(tokens, skip_special_tokens=True)
    assert text == "one twos three one twos three one twos three"
    # "one", " two", "s", nothing, " three", and then " one" with the space that the first has not
    assert token_text_offsets(fast, tokens, text) == [3, 7, 8, 8, 14, 18, 22, 23, 23, 29, 33, 37, 38, 38, 44]


def test_a_text_that_was_given_otherwise_is_never_left() -> None:
    policy = policy_of("llama")
    tokens = policy.processor("red cat", add_special_tokens=False)["input_ids"]
    assert token_text_offsets(policy.processor, tokens, "red c") == [3, 5]
    assert token_text_offsets(policy.processor, [], "") == []
