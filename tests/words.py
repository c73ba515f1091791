"""Counts words of GLOSSARY that readers of other codebases do not know: ``python -m tests.words [FOLDER ...]``."""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("mmgrpo", "policies", "rewards", "examples")
WORDS = (
    *("said", "told", "known", "found", "asked", "beside", "behind", "held", "drawn", "whole", "mine", "there"),
    *(
        "given",
        "kept",
        "own",
        "one",
        "everyones",
        "judged",
        "taught",
        "learnt",
        "shown",
        "heard",
        "seen",
        "made",
        "odd",
    ),
    *(
        "odd",
        "nobody",
        "somebody",
        "sight",
        "sights",
        "seat",
        "verdict",
        "experience",
        "lesson",
        "facts",
        "account",
        "place",
    ),
)
"""Identifiers that say that something happened to a thing, or are this project's alone, instead of naming the thing."""
DOCS_WORD = "what"


def python_files(folders: Iterable[str] = PRODUCT) -> Iterator[Path]:
    for folder in folders:
        path = ROOT / folder
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def identifiers(path: Path) -> Counter[str]:
    """Every use of every name in a file."""
    with path.open("rb") as file:
        return Counter(token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.NAME)


def uses(folders: Iterable[str] = PRODUCT) -> Counter[str]:
    """How often each of ``WORDS`` is an identifier."""
    total: Counter[str] = Counter()
    for path in python_files(folders):
        counted = identifiers(path)
        total.update({word: counted[word] for word in WORDS if counted[word]})
    return total


def components(folders: Iterable[str] = PRODUCT) -> Counter[str]:
    """How often each of ``WORDS`` is a part of a longer identifier."""
    total: Counter[str] = Counter()
    for path in python_files(folders):
        for name, number in identifiers(path).items():
            parts = set(re.split(r"_+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())) - {name}
            total.update({word: number for word in WORDS if word in parts})
    return total


def repeated_classes(folders: Iterable[str] = PRODUCT) -> dict[str, list[str]]:
    """Public class names that several modules define."""
    defined = defaultdict(list)
    for path in python_files(folders):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(str(path.relative_to(ROOT)))
    return {name: files for name, files in sorted(defined.items()) if len(files) > 1}


def repeated_files(folders: Iterable[str] = PRODUCT) -> dict[str, list[str]]:
    """File names that stand in several folders, packages' own files aside."""
    named = defaultdict(list)
    for path in python_files(folders):
        if not path.name.startswith("__"):
            named[path.name].append(str(path.relative_to(ROOT)))
    return {name: files for name, files in sorted(named.items()) if len(files) > 1}


def per_thousand(path: Path, word: str = DOCS_WORD) -> float:
    """How often a word stands in 1,000 words of a page."""
    text = re.sub(r"```.*?```", " ", path.read_text(), flags=re.S)
    words = re.findall(r"[A-Za-z][A-Za-z'-]*", text.lower())
    return 1000 * words.count(word) / max(len(words), 1)


def main(folders: tuple[str, ...]) -> None:
    """Prints the counts of some folders."""
    parts = components(folders)
    for word, number in uses(folders).most_common():
        print(f"{word:12} {number:5} uses, {parts[word]:5} as a part of a name")
    for name, files in (repeated_classes() | repeated_files()).items():
        if any(file.startswith(folders) for file in files):
            print(name, *files)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or PRODUCT)
