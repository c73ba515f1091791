"""The tiny tokenizers mark, pad and spell as the published ones do."""

from __future__ import annotations

from tests.tiny.tokenizers import clip_tokenizer, gemma_tokenizer, mistral_tokenizer, qwen_tokenizer, t5_tokenizer

QWEN_IMAGE_SYSTEM = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)


def tokens(tokenizer, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)


def test_clip_wraps_lower_case_words_and_pads_with_the_end() -> None:
    tokenizer = clip_tokenizer()
    begin, end = "<|startoftext|>", "<|endoftext|>"
    assert tokens(tokenizer, "A red  Cat") == [begin, "a</w>", "red</w>", "cat</w>", end]
    padded = tokenizer("a", padding="max_length", max_length=5).input_ids
    assert tokenizer.convert_ids_to_tokens(padded) == [begin, "a</w>", end, end, end]
    assert tokenizer.model_max_length == 77


def test_words_outside_the_vocabulary_are_spelled() -> None:
    assert tokens(qwen_tokenizer(), "red zq") == ["red", "Ġ", "z", "q"]
    assert tokens(gemma_tokenizer(), "red zq") == ["<bos>", "red", "▁", "z", "q"]
    assert tokens(t5_tokenizer(), "red zq") == ["▁red", "▁", "z", "q", "</s>"]


def test_qwen_image_system_prompt_is_as_long_as_the_pipeline_cuts_off() -> None:
    # QwenImagePipeline drops the first 34 hidden states, the length of its system prompt in Qwen's vocabulary.
    assert len(qwen_tokenizer()(QWEN_IMAGE_SYSTEM).input_ids) == 34


def test_qwen_chat_template_can_skip_the_thinking() -> None:
    tokenizer = qwen_tokenizer()
    turn = [{"role": "user", "content": "a cat"}]
    rendered = "<|im_start|>user\na cat<|im_end|>\n<|im_start|>assistant\n"
    for thinking, text in ((True, rendered), (False, rendered + "<think>\n\n</think>\n\n")):
        written = tokenizer.apply_chat_template(
            turn, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        assert written == text


def test_mistral_chat_template_marks_turns_and_pads_on_the_left() -> None:
    tokenizer = mistral_tokenizer()
    turns = [
        {"role": "system", "content": [{"type": "text", "text": "one"}]},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "two"}]},
    ]
    written = tokenizer.apply_chat_template(turns, tokenize=False)  # pyrefly: ignore[bad-argument-type]
    assert written == "<s>[SYSTEM_PROMPT]one[/SYSTEM_PROMPT][INST][IMG]two[/INST]"
    padded = tokenizer("red", padding="max_length", max_length=3).input_ids
    assert tokenizer.convert_ids_to_tokens(padded) == ["<pad>", "<pad>", "red"]
