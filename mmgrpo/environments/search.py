"""Retrieval as a tool: knowledge bases that are files, by BM25, or retrievers that serve the protocol of Search-R1."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, final

from mmgrpo.data.json_texts import row_of
from mmgrpo.environment import Environment, SupportsCalls, Turn
from mmgrpo.environments.text_calls import CallFormat, SupportsTools, TextCalls, TextTool, Tools
from mmgrpo.environments.unused_settings import require_unset
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.system.extras import required
from mmgrpo.system.json_requests import NoReplyError, RequestLimits, post_json, require_server
from mmgrpo.tool_calls import AssistantMessage, bounded
from mmgrpo.tools import Tool, ToolEnvironment
from mmgrpo.types import Prompt

logger = logging.getLogger(__name__)

RESULT = "\n\n<information>{result}</information>\n\n"

FORMATS: Mapping[str, CallFormat] = {"tag": CallFormat(opening="<search>", closing="</search>", result=RESULT)}

FORMATS_OF_SEVERAL: Mapping[str, CallFormat] = {
    "tag": CallFormat(opening="<search_{base}>", closing="</search_{base}>", result=RESULT)
}
"""Formats with several knowledge bases: ``{base}`` is the name of each."""

MAX_QUERY_CHARS = 2_000
"""Maximum length of a query; the rest is not searched for."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document: its title and its text."""

    title: str
    text: str

    @classmethod
    def of(cls, row: Any) -> Document:
        """The document of a row.

        Args:
            row: a mapping with ``contents``, a title line and the text, as in Search-R1, or with ``text`` and
                optionally ``title``.

        Returns:
            The document.

        Raises:
            DataError: it has no text.
        """
        contents, text = (row.get(name) if isinstance(row, Mapping) else None for name in ("contents", "text"))
        if isinstance(contents, str):
            title, _, text = contents.partition("\n")
            return cls(title, text)
        if isinstance(text, str):
            return cls(str(row.get("title") or ""), text)
        raise DataError(f"a document needs the text 'contents' or 'text', got {row!r:.100}")


class KnowledgeBase(Protocol):
    """Documents that can be searched."""

    def search(self, query: str, topk: int) -> Sequence[Document]:
        """The best documents for a query, best first.

        Args:
            query: the query.
            topk: maximum number of documents.

        Returns:
            The documents.

        Raises:
            NoReplyError: a server gave no usable reply.
        """
        ...


@final
class Corpus:
    """The documents of a ``.jsonl`` file, ranked by BM25; a row that cannot be read is left out and counted."""

    def __init__(self, path: Path) -> None:
        """Reads and indexes the file.

        Args:
            path: the file.

        Raises:
            ConfigError: there is no such file, or no document or word in it.
            MissingPackageError: ``bm25s`` is not installed.
        """
        self._bm25s = required("bm25s", "the environment search with a corpus")
        if not path.is_file():
            raise ConfigError(f"there is no corpus {path}: set 'corpus' of the environment search to a .jsonl file")
        self._documents, errors = _documents_in(path)
        if errors:
            logger.warning("%s: %d rows are left out; the first: %s", path, len(errors), errors[0])
        if not self._documents:
            raise ConfigError(f'{path} has no documents: a line is such as {{"title": "..", "text": ".."}}')
        self._index = self._bm25s.BM25()
        texts = [f"{document.title}\n{document.text}" for document in self._documents]
        tokens = self._bm25s.tokenize(texts, show_progress=False)
        if not any(tokens.ids):
            raise ConfigError(f"{path} has no words that can be searched: they have two letters, and are no stop words")
        self._index.index(tokens, show_progress=False)

    def search(self, query: str, topk: int) -> Sequence[Document]:
        """The best documents that share a word with the query, without stop words; best first.

        Args:
            query: the query.
            topk: maximum number of documents.

        Returns:
            The documents.
        """
        tokens = self._bm25s.tokenize([query], return_ids=False, show_progress=False)
        if not tokens[0]:
            return []
        number = min(topk, len(self._documents))
        indices, scores = self._index.retrieve(tokens, k=number, show_progress=False)
        ranked = zip(indices[0].tolist(), scores[0].tolist(), strict=True)
        return [self._documents[index] for index, score in ranked if score > 0]


def _documents_in(path: Path) -> tuple[list[Document], list[DataError]]:
    documents: list[Document] = []
    errors: list[DataError] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                documents.append(Document.of(row_of(line, f"line {number}")))
            except DataError as error:
                errors.append(error)
    return documents, errors


_corpus_lock = threading.Lock()  # one corpus is indexed at a time, and once


@lru_cache(maxsize=8)
def _corpus_at(path: Path, modified_ns: int) -> Corpus:
    """The corpus of a file, which all environments of the process share."""
    return Corpus(path)


@final
@dataclass(frozen=True, slots=True)
class Retriever:
    """A server with ``POST URL``: ``{"queries": [..], "topk": k, "return_scores": true}``, answered by ``{"result":
    [[{"document": .., "score": ..}, ..]]}``, or with the documents themselves in the list.

    Source: search_r1/search/retrieval_server.py of github.com/PeterGriffinJin/Search-R1.
    """

    url: str
    limits: RequestLimits

    def search(self, query: str, topk: int) -> Sequence[Document]:
        """The documents that the server returns.

        Args:
            query: the query.
            topk: maximum number of documents.

        Returns:
            The documents.

        Raises:
            NoReplyError: the server gave no usable reply.
        """
        body = post_json(self.url, {"queries": [query], "topk": topk, "return_scores": True}, self.limits)
        try:
            (results,) = json.loads(body)["result"]
            return [Document.of(result.get("document", result)) for result in results][:topk]
        except (
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:  # DataError is a ValueError
            raise NoReplyError(f"{self.url} replied with no list of documents: {body[:200]!r}") from error


@final
class SearchEnvironment(Environment, SupportsCalls, SupportsTools):
    """Answers queries with the best documents of a knowledge base.

    A knowledge base is a ``corpus``, a file with a document a line, or the ``url`` of a server; ``bases`` names
    several, and the policy selects one in each call. A server without a usable reply ends the conversation: its sample
    is not scored. Its turns have no rewards.

    Source: format and protocol of Search-R1 (arXiv:2503.09516); several knowledge bases as in R1-Router
    (arXiv:2505.22095).
    """

    gives_rewards = False

    def __init__(
        self,
        corpus: str | None = None,
        url: str | None = None,
        bases: Mapping[str, Mapping[str, str]] | None = None,
        topk: int = 3,
        call: str | Mapping[str, str] = "tag",
        answer_tag: str | None = "answer",
        describe: bool = True,
        max_chars: int = 4000,
        timeout_s: float | None = None,
        retries: int | None = None,
    ) -> None:
        """Loads the knowledge bases; environments of a process share a corpus.

        Args:
            corpus: ``.jsonl`` file of documents with ``contents``, or ``title`` and ``text``.
            url: address of a retriever, such as ``http://127.0.0.1:8000/retrieve``.
            bases: in place of both, name -> ``{corpus: ..}`` or ``{url: ..}``.
            topk: maximum number of documents of a result.
            call: ``tag`` (``<search>``; with several knowledge bases ``<search_NAME>``), ``tool_call``, or
                ``opening``, ``closing`` and ``result``; ``{base}`` in them is the name of the knowledge base.
            answer_tag: tag of the final answer; None: a turn without a call ends the conversation.
            describe: whether the description of the calls is appended to the prompt.
            max_chars: maximum length of a result.
            timeout_s: time limit of a request to a retriever, in seconds; None: 20.
            retries: number of retries of a request to a retriever; None: 2.

        Raises:
            ConfigError: a setting is not allowed or would have no effect, or a corpus cannot be read.
            MissingPackageError: a corpus needs ``bm25s``.
        """
        if url is None and not any("url" in base for base in (bases or {}).values()):
            require_unset("search", "set it with a url, or remove it", timeout_s=timeout_s, retries=retries)
        timeout_s, retries = 20.0 if timeout_s is None else timeout_s, 2 if retries is None else retries
        if topk < 1 or max_chars < 1 or not timeout_s > 0 or retries < 0:
            raise ConfigError(
                "search needs topk >= 1, max_chars >= 1, timeout_s > 0 and retries >= 0, got "
                f"{topk}, {max_chars}, {timeout_s} and {retries}"
            )
        single = {name: value for name, value in {"corpus": corpus, "url": url}.items() if value is not None}
        if bool(single) == bool(bases):
            raise ConfigError("search needs corpus, url, or bases with several of them, and no two of these")
        limits = RequestLimits(timeout_s=timeout_s, retries=retries)
        self._bases = {name: _base_of(name, base, limits) for name, base in (bases or {"": single}).items()}
        self._topk, self._max_chars = topk, max_chars
        self._calls = TextCalls(self._tools_for(call, describe), answer_tag=answer_tag, describe=describe)

    def _tools_for(self, call: str | Mapping[str, str], describe: bool) -> Tools:
        several = "" not in self._bases
        call_format = CallFormat.of(call, FORMATS_OF_SEVERAL if several else FORMATS)
        if call_format is None:
            return ToolEnvironment([self._search_in_named() if several else self.search], describe)
        if several and "{base}" not in call_format.opening:
            raise ConfigError(f"with several bases call.opening needs {{base}}, got {call_format.opening!r}")
        texts = [
            {text: getattr(call_format, text).replace("{base}", name) for text in CallFormat.__slots__}
            for name in self._bases
        ]
        return [
            TextTool(
                name=f"search_{name}" if name else "search",
                function=lambda query, name=name: self._documents_for(query, name),
                about=f"To search {name or 'for documents'}",
                format=CallFormat(**text),
            )
            for name, text in zip(self._bases, texts, strict=True)
        ]

    @property
    def tools(self) -> Tools:
        """A tool, or one for each knowledge base."""
        return self._calls.tools

    def reset(self, prompt: Prompt) -> Turn:
        """The description of the calls."""
        return self._calls.reset(prompt)

    def step(self, text: str) -> Turn:
        """The documents for the queries in a text, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The documents for the queries of a turn."""
        return self._calls.respond(message)

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """None: the time of a request is limited by ``timeout_s``, so the conversation ends."""
        return None

    def search(self, query: str) -> str:
        """Searches for documents.

        Args:
            query: the query.

        Returns:
            The documents, best first.
        """
        return self._documents_for(query, "")

    def search_in(self, base: str, query: str) -> str:
        """Searches for documents in a knowledge base.

        Args:
            base: name of the knowledge base.
            query: the query.

        Returns:
            The documents, best first.
        """
        return self._documents_for(query, base)

    def _search_in_named(self) -> Tool:
        """``search_in`` with the names of the knowledge bases in its schema."""
        tool = Tool.of(self.search_in)
        schema = deepcopy(dict(tool.schema))
        schema["parameters"]["properties"]["base"]["enum"] = list(self._bases)
        return replace(tool, schema=schema)

    def _documents_for(self, query: str, base: str) -> str:
        documents = self._bases[base].search(query[:MAX_QUERY_CHARS], self._topk)
        lines = [
            f"Doc {number}(Title: {document.title}) {document.text}" for number, document in enumerate(documents, 1)
        ]
        return bounded("\n".join(lines), self._max_chars) or "(no documents)"


def _base_of(name: str, base: Mapping[str, str], limits: RequestLimits) -> KnowledgeBase:
    if isinstance(base, Mapping) and set(base) == {"url"}:
        require_server(base["url"], f"the url of the knowledge base {name}".rstrip())
        return Retriever(base["url"], limits)
    if isinstance(base, Mapping) and set(base) == {"corpus"}:
        path = Path(base["corpus"]).expanduser().resolve()
        with _corpus_lock:
            return _corpus_at(path, path.stat().st_mtime_ns if path.is_file() else 0)
    raise ConfigError(f"the knowledge base {name} is {{corpus: FILE}} or {{url: URL}}, got {base!r}")
