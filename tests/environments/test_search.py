"""Retrieval: the right documents from files and from a server, in both formats of calls, and servers that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.config.registry import resolve
from mmgrpo.environments.search import SearchEnvironment
from mmgrpo.errors import ConfigError
from mmgrpo.system.json_requests import NoReplyError
from mmgrpo.types import Prompt
from tests.environments.retrieval_server import RetrievalServer, written

pytest.importorskip("bm25s")

CITIES = [
    {"id": "0", "contents": '"Oslo"\nThe capital of Norway, at the end of a fjord.'},
    {"id": "1", "contents": '"Rome"\nThe capital of Italy, on the Tiber.'},
    {"title": "Bergen", "text": "A rainy port in Norway between seven mountains."},
]
TAGS = {"opening": "<s>", "closing": "</s>", "result": "{result}"}
RIVERS = [{"title": "Tiber", "text": "A river that flows through Rome."}, {"text": "The Glomma is long."}]


@pytest.fixture
def cities(tmp_path: Path) -> Path:
    return written(tmp_path / "cities.jsonl", CITIES)


@pytest.fixture
def servers() -> Iterator[list[RetrievalServer]]:
    started: list[RetrievalServer] = []
    yield started
    for server in started:
        server.shutdown()
        server.server_close()


def test_queries_return_documents_that_share_words_best_first(cities: Path) -> None:
    search = SearchEnvironment(corpus=str(cities), topk=2)
    reply = search.step("I need it. <search> mountains of Norway </search>")
    assert reply.text == (
        "\n\n<information>Doc 1(Title: Bergen) A rainy port in Norway between seven mountains.\n"
        'Doc 2(Title: "Oslo") The capital of Norway, at the end of a fjord.</information>\n\n'
    )
    assert search.step("<search>the of and</search>").text == "\n\n<information>(no documents)</information>\n\n"
    assert search.step("<search>Zanzibar</search>").text == "\n\n<information>(no documents)</information>\n\n"
    assert "Doc 2" not in search.step("<search>Tiber</search>").text


def test_answers_end_a_conversation_and_other_turns_are_invalid(cities: Path) -> None:
    search = SearchEnvironment(corpus=str(cities))
    how = "To search for documents, write <search>...</search>.\nTo give the final answer, write <answer>...</answer>."
    assert search.reset(Prompt("Where?")).text == how
    assert search.step("Hm.").text == f"This turn is invalid. {how}"
    assert search.step("<search>Rome</search> <answer>Rome</answer>").done
    assert SearchEnvironment(corpus=str(cities), answer_tag=None, describe=False).reset(Prompt("?")).text == ""
    assert SearchEnvironment(corpus=str(cities), answer_tag=None).step("Rome").done


def test_long_results_are_cut(cities: Path) -> None:
    text = SearchEnvironment(corpus=str(cities), topk=1, max_chars=12).step("<search>Rome</search>").text
    assert text == "\n\n<information>Doc 1(Title:\n[44 characters are cut off]</information>\n\n"


def test_unreadable_rows_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "rows.jsonl", [*CITIES[:1], "{broken", {"id": 3}, "7"])
    text = SearchEnvironment(corpus=str(path)).step("<search>fjord</search>").text
    assert 'Doc 1(Title: "Oslo")' in text
    assert "3 rows are left out; the first: line 2 is not JSON" in caplog.text


def test_a_server_gives_the_documents_of_its_corpus(cities: Path, servers: list[RetrievalServer]) -> None:
    servers.append(server := RetrievalServer(cities, []))
    local, remote = SearchEnvironment(corpus=str(cities), topk=2), SearchEnvironment(url=server.url, topk=2)
    for query in ("capital of Italy", "rainy Norway", "Zanzibar"):
        assert remote.step(f"<search>{query}</search>") == local.step(f"<search>{query}</search>")
    assert server.requests[0] == {"queries": ["capital of Italy"], "topk": 2, "return_scores": True}


@pytest.mark.nightly
def test_busy_servers_are_asked_again_and_lost_ones_end_the_conversation(
    cities: Path, servers: list[RetrievalServer]
) -> None:
    servers.append(busy := RetrievalServer(cities, [503]))
    assert "Oslo" in SearchEnvironment(url=busy.url).step("<search>fjord</search>").text
    assert len(busy.requests) == 2
    servers.append(wrong := RetrievalServer(cities, [], body=b'{"result": [[{"score": 1}]]}'))
    with pytest.raises(NoReplyError, match="no list of documents"):
        SearchEnvironment(url=wrong.url).step("<search>fjord</search>")
    called = SearchEnvironment(url=f"{wrong.url}/nowhere", call="tool_call")
    call = json.dumps({"name": "search", "arguments": {"query": "fjord"}})
    with pytest.raises(NoReplyError, match="HTTP 404"):
        called.step(f"<tool_call>{call}</tool_call>")


def test_calls_select_one_of_several_bases(cities: Path, tmp_path: Path, servers: list[RetrievalServer]) -> None:
    servers.append(server := RetrievalServer(written(tmp_path / "rivers.jsonl", RIVERS), []))
    bases = {"cities": {"corpus": str(cities)}, "rivers": {"url": server.url}}
    tagged = SearchEnvironment(bases=bases, topk=1)
    assert tagged.reset(Prompt("?")).text.startswith("To search cities, write <search_cities>...</search_cities>.\n")
    reply = tagged.step("<search_rivers>Rome</search_rivers> then <search_cities>Rome</search_cities>").text
    assert reply.index("A river that flows through Rome.") < reply.index("The capital of Italy")
    called = SearchEnvironment(bases=bases, topk=1, call="tool_call")
    (tool,) = called.reset(Prompt("?")).tools
    assert tool["function"]["parameters"]["properties"]["base"]["enum"] == ["cities", "rivers"]

    def search_in(base: str) -> str:
        call = json.dumps({"name": "search_in", "arguments": {"base": base, "query": "Glomma"}})
        return called.step(f"<tool_call>{call}</tool_call>").text

    assert search_in("rivers") == "Doc 1(Title: ) The Glomma is long."
    assert search_in("cities") == "(no documents)"
    assert "cities" in search_in("lakes")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs corpus, url, or bases"),
        ({"corpus": "nowhere.jsonl"}, "there is no corpus .*nowhere.jsonl"),
        ({"url": "localhost:8000"}, "must be such as http://"),
        ({"bases": {"a": {"file": "x"}}}, "knowledge base a is"),
        ({"url": "http://127.0.0.1:1/retrieve", "topk": 0}, "topk >= 1"),
        ({"corpus": "nowhere.jsonl", "retries": 0}, "retries of search would have no effect: set it with a url"),
        (
            {
                "bases": {"a": {"url": "http://127.0.0.1:1/"}},
                "call": {"opening": "<s>", "closing": "</s>", "result": "{result}"},
            },
            "base",
        ),
    ],
)
def test_bad_settings_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("environments", "search")(**settings)


def test_a_corpus_without_words_is_an_error(tmp_path: Path) -> None:
    corpus = written(tmp_path / "letters.jsonl", [{"text": "a"}, {"text": "the"}])
    with pytest.raises(ConfigError, match=r"letters\.jsonl has no words that can be searched"):
        SearchEnvironment(str(corpus))
