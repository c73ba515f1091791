"""Every tested family, at its smallest: stock configurations, models and processors, weights from a seed.

``writing.yaml`` and ``translating.yaml`` have the values of a configuration that must not be small, ``seeing.yaml`` and
``hearing.yaml`` also the parts of the processor. A value ``{token: X}`` is the id of a special token, ``TOKENIZER``
the tokenizer, and ``{of: X, ...}`` the class X with those arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto import modeling_auto

from mmgrpo.system.yamls import parse_yaml_1_1
from mmgrpo.types import Prompt
from tests.audio_signals import tone
from tests.breadth.language.configs import merged, shrunk, small
from tests.policies.tiny_language import TEXTS, picture
from tests.tiny import chat_tokenizers, language_models

HERE = Path(__file__).parent
MOST_PARAMETERS = 6e6
WRITING, SEEING, TRANSLATING = "causal language models", "image-text-to-text models", "encoder-decoders"
HEARING = "models that hear"
SOUND_RATE = 8000  # of what they are played; resampled to their own
LOGIT_STD = 2.5
MAPPINGS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ")
NO_RECIPE = "no recipe yet"

TEMPLATE = (
    "{% for message in messages %}{{ message.role }} {% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}MARK{% elif part.type == 'video' %}<video>"
    "{% elif part.type == 'audio' %}SOUND{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}\n"
    "{% if message.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
SPECIALS = ("<unk>", "<s>", "<|end|>", "<pad>", "<video>")
NAMES: dict[str, Any] = {"bos_token": "<s>", "eos_token": "<|end|>", "pad_token": "<pad>", "unk_token": "<unk>"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is tried.

    Attributes:
        name: as transformers has it.
        kind: one of the four above.
        architecture: the model's class.
        make: builds model and processor.
        prompts: of every kind the family takes: texts of two lengths, one image or sound, several.
    """

    name: str
    kind: str
    architecture: str
    make: Callable[[], tuple[PreTrainedModel, Any]]
    prompts: tuple[Prompt, ...]


@cache
def families() -> dict[str, Family]:
    """By name, the kinds one after the other."""
    texts = tuple(Prompt(text) for text in TEXTS)
    result: dict[str, Family] = {}
    causal: Any = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    for name, row in _table("writing").items():
        make = _text_maker(name, causal[name], row or {}, translates=False)
        result[name] = Family(name=name, kind=WRITING, architecture=causal[name], make=make, prompts=texts)
    for name, row in _table("seeing").items():
        prompts = _image_prompts(several=row.get("several", True), blind=row.get("blind", True))
        make = _seeing_maker(row)
        result[name] = Family(name=name, kind=SEEING, architecture=row["model"], make=make, prompts=prompts)
    for name, row in _table("hearing").items():
        prompts = _audio_prompts(several=row.get("several", True), deaf=row.get("deaf", True))
        make = _seeing_maker(row)
        result[name] = Family(name=name, kind=HEARING, architecture=row["model"], make=make, prompts=prompts)
    for name, tiny in language_models.TINY.items():
        if tiny.images:
            prompts = _image_prompts(several=tiny.several, blind=not tiny.needs_image)
            make = _tiny_maker(name)
            architecture = type(make()[0]).__name__
            result[name] = Family(name=name, kind=SEEING, architecture=architecture, make=make, prompts=prompts)
    translating: Any = modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    for name, row in _table("translating").items():
        make = _text_maker(name, translating[name], row or {}, translates=True)
        key = f"{name} (encoder-decoder)" if name in result else name
        result[key] = Family(name=key, kind=TRANSLATING, architecture=translating[name], make=make, prompts=texts)
    return result


def untried() -> dict[str, tuple[str, ...]]:
    """The classes of the installed library that generate by tokens and are not tried, by the reason."""
    tried = {family.architecture for family in families().values()}
    reasons = {name: reason for reason, names in _table("untried").items() for name in names}
    result: dict[str, set[str]] = {}
    for mapping in MAPPINGS:
        for names in getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES").values():
            for name in {names} if isinstance(names, str) else set(names):
                if name not in tried:
                    result.setdefault(reasons.get(name, NO_RECIPE), set()).add(name)
    return {reason: tuple(sorted(result[reason])) for reason in sorted(result)}


def _table(name: str) -> dict[str, Any]:
    return parse_yaml_1_1((HERE / f"{name}.yaml").read_text(encoding="utf-8"))


def _image_prompts(*, several: bool, blind: bool) -> tuple[Prompt, ...]:
    single = (Prompt(TEXTS[1], images=[picture(24, 16, 1)]), Prompt(TEXTS[0], images=[picture()]))
    more = (Prompt(TEXTS[1], images=[picture(24, 16, 1), picture(seed=2)]),) if several else ()
    alone = (Prompt(TEXTS[0]), Prompt(TEXTS[1])) if blind else ()
    return (*single, *more, *alone)


def _audio_prompts(*, several: bool, deaf: bool) -> tuple[Prompt, ...]:
    """Prompts with one sound, two where the family takes them, and none where it does."""
    short, long = (tone(hertz, rate=SOUND_RATE, duration_s=s) for hertz, s in ((440.0, 0.3), (880.0, 0.4)))
    single = (Prompt(TEXTS[1], audios=[long]), Prompt(TEXTS[0], audios=[short]))
    more = (Prompt(TEXTS[1], audios=[long, short]),) if several else ()
    alone = (Prompt(TEXTS[0]), Prompt(TEXTS[1])) if deaf else ()
    return (*single, *more, *alone)


def _tiny_maker(name: str) -> Callable[[], tuple[PreTrainedModel, Any]]:
    return lambda: language_models.make(name)


def _text_maker(
    name: str, architecture: str, overrides: Mapping[str, Any], *, translates: bool
) -> Callable[[], tuple[PreTrainedModel, Any]]:
    def make() -> tuple[PreTrainedModel, Any]:
        tokenizer = chat_tokenizers.llama()
        config: Any = CONFIG_MAPPING[name]()
        values: dict[str, Any] = _ids(tokenizer)
        if translates:
            tokenizer.chat_template = None
            values["decoder_start_token_id"] = tokenizer.bos_token_id
        elif hasattr(config, "is_decoder"):
            values["is_decoder"] = True
        return _random_mask(getattr(transformers, architecture), shrunk(config, **merged(values, overrides))), tokenizer

    return make


def _seeing_maker(row: Mapping[str, Any]) -> Callable[[], tuple[PreTrainedModel, Any]]:
    def make() -> tuple[PreTrainedModel, Any]:
        tokenizer = _tokenizer(row)
        processor = _construct(row["processor"], tokenizer)
        processor.chat_template = tokenizer.chat_template
        kind = getattr(transformers, row["model"])
        values, ids = small(kind.config_class().to_dict()), _ids(tokenizer)
        part = row.get("text", "text_config")
        values = merged(values, ids if part is None else {part: ids} | {k: v for k, v in ids.items() if k in values})
        marks = row.get("ids", {"image_token_id": "<image>"})
        values |= {name: tokenizer.convert_tokens_to_ids(token) for name, token in marks.items()}
        config = kind.config_class(**merged(values, _construct(row.get("config", {}), tokenizer)))
        return _random_mask(kind, config), processor

    return make


def _tokenizer(row: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    names, marks = row.get("names", {}), row.get("ids", {"image_token_id": "<image>"})
    special = dict.fromkeys((*SPECIALS, *row.get("specials", ()), *names.values(), *marks.values()))
    template = TEMPLATE.replace("MARK", row.get("mark", "<image>")).replace("SOUND", row.get("sound", "<audio>"))
    template = template.replace("<video>", row.get("video", "<video>"))
    tokenizer = chat_tokenizers.build(list(special), template, extra_special_tokens=names, **NAMES)
    if not row.get("template", True):
        tokenizer.chat_template = None
    return tokenizer


def _construct(entry: Any, tokenizer: PreTrainedTokenizerFast) -> Any:
    """The object that a value of the tables names."""
    if entry == "TOKENIZER":
        return tokenizer
    if isinstance(entry, list):
        return [_construct(value, tokenizer) for value in entry]
    if not isinstance(entry, Mapping):
        return entry
    if set(entry) == {"token"}:
        return tokenizer.convert_tokens_to_ids(entry["token"])
    values = {name: _construct(value, tokenizer) for name, value in entry.items()}
    if "of" not in values:
        return values
    kind = getattr(transformers, values.pop("of"))
    required = [name for name in inspect.signature(kind.__init__).parameters if name in values]
    return kind(**{name: values[name] for name in (*required, *(n for n in values if n not in required))})


def _ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _random_mask(kind: Any, config: Any) -> PreTrainedModel:
    """A model in float32 and eval mode. Raises ValueError if its configuration is not small."""
    with torch.device("meta"):
        sizes = {name: parameter.numel() for name, parameter in kind(config).named_parameters()}
    if sum(sizes.values()) > MOST_PARAMETERS:
        raise ValueError(f"{kind.__name__} is not small: {sorted(sizes.items(), key=lambda item: -item[1])[:4]}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config)
        with suppress(AssertionError):  # a head that is no linear layer stays as its class draws it
            language_models._draw(model, LOGIT_STD)
    return model.float().eval()
