"""Reward for HTML tables: similarity of their trees."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import unescape
from typing import Any, final

from mmgrpo.system.extras import required
from mmgrpo.types import Sample, Score

from ..parsing.explanations import excerpt
from ..parsing.extraction import Extract, extract_answer, normalize_text, require_extract
from ..parsing.reference_values import find_reference_error, score_against_reference

MAX_NODES = 400

_TAG = re.compile(r"<(?P<end>/)?(?P<name>[A-Za-z!][\w-]{0,40})(?P<rest>[^<>]*)>")
_PARTS = ("thead", "tbody", "tfoot", "tr", "td", "th")
_CELLS = ("td", "th")
_CLOSES = {"tr": ("tr", *_CELLS), "thead": _PARTS, "tbody": _PARTS, "tfoot": _PARTS} | dict.fromkeys(_CELLS, _CELLS)
"""Unclosed elements that an opening tag closes."""


@dataclass(slots=True)
class Node:
    """A node of a table: its tag with column and row span, the text of a cell, its children in order."""

    kind: tuple[str, int, int]
    text: str = ""
    parts: list[Node] = field(default_factory=list)


@final
class TableSimilarity:
    """Reward: similarity of the HTML table in the answer to the reference, by tree edit distance (TEDS).

    1 - distance / nodes of the larger table. The trees have nodes for table, thead, tbody, tfoot, tr and cells.
    Deleting or inserting a node costs 1; replacing one costs 1 if tags or spans differ, else the edit distance of the
    cell texts / length of the longer one. With ``structure: true`` texts are ignored (TEDS-S). The first table in the
    answer is used. The reference, in ``column``, is HTML.

    Settings: ``extract`` as in ``exact_match``.
    Range: 0 to 1.
    Source: Zhong et al. 2020 (PubTabNet), arXiv:1911.10683, sec. V; the distance by Zhang and Shasha 1989. Deviations:
    header cells (th) are cells, tags within a cell are reduced to text, whitespace runs are one space.
    Traps: time grows with the product of the sizes; an answer of more than 400 nodes scores 0, a reference of more is
    not scored. Markdown tables are not parsed.
    """

    def __init__(self, column: str = "answer", structure: bool = False, extract: Extract = "none") -> None:
        self.column = column
        self._structure = structure
        self._extract: Extract = require_extract("TableSimilarity.extract", extract)
        self._distance = required("rapidfuzz.distance", "reward table_similarity").Levenshtein.normalized_distance

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("table_similarity", samples, self.column, _reference, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, _reference, "an HTML table")

    def _score(self, text: str, reference: Node) -> Score:
        table = parse_table(extract_answer(text, self._extract) or "")
        if table is None:
            return Score(0.0, {"parsed": None, "reference": _shape(reference), "reason": "no table"})
        explanation = {"parsed": _shape(table), "reference": _shape(reference)}
        size = max(_size(table), _size(reference))
        if size > MAX_NODES:
            return Score(0.0, explanation | {"reason": f"{_size(table)} nodes, more than {MAX_NODES}"})
        return Score(1 - tree_distance(table, reference, self._replacing) / size, explanation)

    def _replacing(self, first: Node, second: Node) -> float:
        if first.kind != second.kind:
            return 1.0
        return 0.0 if self._structure else self._distance(first.text, second.text)


def parse_table(text: str) -> Node | None:
    """Parse the first HTML table in a text, closed or not; None if there is none."""
    building, end = _Building(), 0
    for tag in _TAG.finditer(text):
        building.write(text[end : tag.start()])
        end = tag.end()
        if tag["end"]:
            building.end(tag["name"].lower())
        else:
            building.start(tag["name"].lower(), tag["rest"].lower())
    for node in [] if building.table is None else _below(building.table):
        node.text = normalize_text(unescape(node.text), ignore_case=False) or ""
    return building.table


def tree_distance(first_root: Node, second_root: Node, replacing: Callable[[Node, Node], float]) -> float:
    """Tree edit distance: minimum cost to transform one ordered tree into another by deleting, inserting (1 each) and
    replacing nodes.

    Args:
        first_root: a tree.
        second_root: another.
        replacing: cost of replacing a node of the first by one of the second.

    Returns:
        The distance.

    Source: Zhang and Shasha 1989, Simple fast algorithms for the editing distance between trees and related problems.
    """
    first, second = _Order(first_root), _Order(second_root)
    costs = [[replacing(a, b) for b in second.nodes] for a in first.nodes]
    trees = [[0.0] * len(second.nodes) for _ in first.nodes]
    for i in first.keys:
        for j in second.keys:
            _forests(first, second, i, j, costs, trees)
    return trees[-1][-1]


class _Order:
    """The nodes of a tree in post-order; the leftmost leaf of each; the key roots."""

    def __init__(self, root: Node) -> None:
        self.nodes: list[Node] = []
        self.leaf: list[int] = []
        self._add(root)
        last = {leaf: at for at, leaf in enumerate(self.leaf)}
        self.keys = sorted(last.values())

    def _add(self, node: Node) -> int:
        leaves = [self._add(part) for part in node.parts]
        self.leaf.append(leaves[0] if leaves else len(self.nodes))
        self.nodes.append(node)
        return self.leaf[-1]


def _forests(
    first: _Order, second: _Order, i: int, j: int, costs: Sequence[Sequence[float]], trees: list[list[float]]
) -> None:
    """Compute the distances of the subtrees on the leftmost paths of i and j."""
    top, left = first.leaf[i], second.leaf[j]
    before = [float(n) for n in range(j - left + 2)]
    rows = [before]
    for a in range(top, i + 1):
        row = [before[0] + 1]
        for b in range(left, j + 1):
            are_trees = first.leaf[a] == top and second.leaf[b] == left
            start = before[b - left] if are_trees else rows[first.leaf[a] - top][second.leaf[b] - left]
            replaced = start + (costs[a][b] if are_trees else trees[a][b])
            row.append(min(before[b - left + 1] + 1, row[-1] + 1, replaced))
            if are_trees:
                trees[a][b] = row[-1]
        rows.append(row)
        before = row


class _Building:
    """Builds a tree from a stream of tags."""

    def __init__(self) -> None:
        self.table: Node | None = None
        self._open: list[Node] = []

    def start(self, tag: str, attributes: str) -> None:
        if tag == "table" and self.table is None:
            self.table = Node(("table", 1, 1))
            self._open = [self.table]
        elif tag in _PARTS and self._open:
            while self._open[-1].kind[0] in _CLOSES[tag]:
                self._open.pop()
            part = Node(("td" if tag == "th" else tag, _span("col", attributes), _span("row", attributes)))
            self._open[-1].parts.append(part)
            self._open.append(part)

    def end(self, tag: str) -> None:
        closed = "td" if tag == "th" else tag
        if any(node.kind[0] == closed for node in self._open):
            while self._open.pop().kind[0] != closed:
                pass

    def write(self, text: str) -> None:
        if self._open and self._open[-1].kind[0] == "td":
            self._open[-1].text += text


def _span(side: str, attributes: str) -> int:
    match = re.search(rf"\b{side}span\s?=\s?[\"']?(\d{{1,3}})", attributes)
    return max(int(match[1]), 1) if match else 1


def _reference(value: Any) -> Node | None:
    table = parse_table(value) if isinstance(value, str) else None
    return table if table is not None and 0 < _size(table) <= MAX_NODES else None


def _size(node: Node) -> int:
    """Number of descendants of a node."""
    return sum(1 + _size(part) for part in node.parts)


def _shape(table: Node) -> str | None:
    """The cell texts, row by row."""
    rows = [part for part in _below(table) if part.kind[0] == "tr"]
    return excerpt(" / ".join(" | ".join(cell.text for cell in row.parts) for row in rows)) or None


def _below(node: Node) -> list[Node]:
    return [descendant for part in node.parts for descendant in (part, *_below(part))]
