"""Texts of an environment as tokens: a special token in them is characters, as any others.

A tool that returns ``<|im_end|>`` could otherwise end its own turn and begin one of another role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor

from mmgrpo.environment import Turn
from mmgrpo.errors import DataError

from .tool_turns import ANSWER

MARK = "\ufdd0"
"""A noncharacter of Unicode, which no text contains, between the characters of special tokens that are text."""


@final
class LiteralText:
    """Marks special tokens in the texts of a turn, and tokenizes marked texts."""

    def __init__(self, tokenizer: Any, control_ids: Sequence[int]) -> None:
        """Lists the special tokens.

        Args:
            tokenizer: of transformers.
            control_ids: tokens that end turns or replace media, whether the tokenizer calls them special or not.
        """
        self._tokenizer = tokenizer
        special = {str(token): value for value, token in tokenizer.added_tokens_decoder.items() if token.special}
        special |= dict(zip(map(str, tokenizer.all_special_tokens), tokenizer.all_special_ids, strict=True))
        special |= dict(zip(tokenizer.convert_ids_to_tokens(list(control_ids)), control_ids, strict=True))
        self._id_of = special
        texts = sorted([ANSWER, *special], key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, texts))})")

    def mark(self, turn: Turn) -> Turn:
        """The turn with marks in the special tokens of its texts and of the descriptions of its tools, so that unmarked
        ones are those of the template.

        Args:
            turn: the turn.

        Returns:
            The turn.

        Raises:
            DataError: special tokens overlap, so that one remains.
        """
        results = [
            replace(result, name=self._marked(result.name), text=self._marked(result.text)) for result in turn.results
        ]
        tools = [self._marked_values(tool) for tool in turn.tools]
        return replace(turn, text=self._marked(turn.text), results=results, tools=tools)

    def _marked_values(self, value: Any) -> Any:
        """A value of JSON with marks in its texts."""
        if isinstance(value, Mapping):
            return {self._marked_values(key): self._marked_values(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked_values(each) for each in value]
        return self._marked(value) if isinstance(value, str) else value

    def _marked(self, text: str) -> str:
        marked = self._special.sub(lambda match: MARK.join(match[0]), text.replace(MARK, "\ufffd"))
        if self._special.search(marked):
            raise _error(text)
        return marked

    def encode(self, text: str) -> Tensor:
        """Token ids of a text, as the tokenizer makes them, with marked special tokens as those of their characters.

        Args:
            text: with marks.

        Returns:
            The ids, as int64.

        Raises:
            DataError: the tokenizer has no other ids for a special token, or its ids for a text depend on the special
                tokens around it.
        """
        token_ids = self._ids(text)
        if MARK not in text:
            return torch.tensor(token_ids, dtype=torch.long)
        parts = [part for part in self._special.split(text) if part]
        if [token for part in parts for token in self._part_ids(part)] != token_ids:
            raise _error(text)
        literal_ids = [self._part_ids(part.replace(MARK, ""), literal=MARK in part) for part in parts]
        special_ids = {*self._id_of.values()} - {self._tokenizer.unk_token_id}
        if any(not special_ids.isdisjoint(ids) for part, ids in zip(parts, literal_ids, strict=True) if MARK in part):
            raise _error(text)
        return torch.tensor([token for ids in literal_ids for token in ids], dtype=torch.long)

    def _part_ids(self, part: str, *, literal: bool = False) -> list[int]:
        is_special = part in self._id_of and not literal
        return [self._id_of[part]] if is_special else self._ids(part, split_special_tokens=literal)

    def _ids(self, text: str, **arguments: bool) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False, **arguments)["input_ids"]


def _error(text: str) -> DataError:
    return DataError(
        f"the turn {text.replace(MARK, '')!r:.60} contains a special token of the model, which its tokenizer cannot "
        "write as text: remove it from the text"
    )
