"""A tiny language model that has learned to call tools, with a chat template that describes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import trl
from mmgrpo.policies.language import LanguagePolicy
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM
from trl.chat_template_utils import add_response_schema

from mmgrpo.types import Example, Prompt
from tests.tiny import processors, vision_language_models
from tests.tiny.chat_tokenizers import CHATML, CHATML_ENDS, QWEN_VISION_TOKENS, build

TEMPLATES = Path(trl.__file__).parent / "chat_templates"


def tokenizer_of(template: str = "qwen3", specials: Sequence[str] = (), **ends: Any) -> PreTrainedTokenizerBase:
    """A tokenizer with the chat template of a published model, and its response template where TRL has one."""
    text = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    tokens: dict[str, Any] = {**(ends or CHATML_ENDS)}
    tokenizer = build([*CHATML, *specials], text, **tokens)
    with suppress(ValueError):
        return add_response_schema(tokenizer)
    return tokenizer


def caller(template: str, examples: Sequence[Example], **settings: Any) -> LanguagePolicy:
    """A policy that writes the texts of the examples after their prompts; its tokens are long pieces of them."""
    return policy_of(tokenizer_for(template, examples), examples, **settings)


def vision_caller(examples: Sequence[Example], **settings: Any) -> LanguagePolicy:
    """As ``caller``, with the template, the processor and the architecture of Qwen3-VL."""
    tokenizer: Any = tokenizer_for("qwen3_vl", examples, QWEN_VISION_TOKENS)
    parts = processors.qwen3_vl()
    template = tokenizer.chat_template
    processor = type(parts)(parts.image_processor, tokenizer, parts.video_processor, chat_template=template)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = vision_language_models.qwen3_vl(tokenizer)
    assert model.generation_config is not None
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.bos_token_id = None
    policy = LanguagePolicy(model.float().eval(), processor, {"max_new_tokens": 512, "temperature": 0.1, **settings})
    return trained(policy, examples)


def tokenizer_for(template: str, examples: Sequence[Example], specials: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """A tokenizer whose tokens are long pieces of the examples."""
    written: Any = tokenizer_of(template, specials)
    texts = [
        written.apply_chat_template(
            list(example.prompt.messages or ()), tokenize=False, **example.prompt.chat_template_kwargs
        )
        for example in examples
    ] + [example.text or "" for example in examples]
    tokenizer = written.train_new_from_iterator([*texts, *texts], vocab_size=1_000)
    tokenizer.chat_template = written.chat_template
    return add_response_schema(tokenizer)


def policy_of(tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example] = (), **settings: Any) -> LanguagePolicy:
    """A policy of random weights, or one that writes the texts of the examples after their prompts."""
    untyped: Any = tokenizer
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(tokenizer),
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=16,
                max_position_embeddings=4096,
                initializer_range=0.1,  # for the usual 0.02 the examples take three times as many updates
                tie_word_embeddings=False,
                bos_token_id=None,
                eos_token_id=untyped.eos_token_id,
                pad_token_id=untyped.pad_token_id,
            )
        )
    policy = LanguagePolicy(model.float().eval(), tokenizer, {"max_new_tokens": 512, "temperature": 0.1, **settings})
    return trained(policy, examples)


def trained(policy: LanguagePolicy, examples: Sequence[Example]) -> LanguagePolicy:
    """The policy, after updates on the examples."""
    optimizer = torch.optim.Adam(policy.trainable, lr=5e-3, betas=(0.9, 0.95))
    for _ in range(MAX_UPDATES if examples else 0):
        loss = policy.supervised_loss(examples, seeds=[0] * len(examples)).mean
        if loss < MAX_LOSS:
            break
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.trainable, 1.0)
        optimizer.step()
    return policy


MAX_UPDATES, MAX_LOSS = 100, 1e-2


def hermes(name: str, arguments: str) -> str:
    """A call in the format of Hermes and Qwen."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def example(messages: Sequence[dict[str, Any]], tools: Sequence[Any], text: str) -> Example:
    """A turn of the policy after some messages, with these functions in the chat template."""
    arguments = {"tools": list(tools)}
    return Example(Prompt("", messages=list(messages), chat_template_kwargs=arguments), text=text)


def ask(text: str) -> list[dict[str, Any]]:
    """The message of a user."""
    return [{"role": "user", "content": text}]


def answered(text: str, name: str, arguments: dict[str, Any], result: Any) -> list[dict[str, Any]]:
    """The message of a user, a call of the policy, and its result: a text or content blocks."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        *ask(text),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": name, "content": result},
    ]
