"""Counts words of the glossary that readers of other codebases do not know: ``python -m tests.words [FOLDER ...]``.

``python -m tests.words --prose [FOLDER ...]`` lists the places of ``PHRASES`` in docstrings, comments and messages.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
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
TESTS = ("tests", "benchmarks")
CONFIGS = ROOT / "configs"
PHRASES = (
    *("drawn", "judged", "told", "tells", "lies?", "lays?", "laid", "lying", "learnt", "taught", "teach(?:es)?"),
    *("somebody", "nobody", "everybody", "whoever", "nowhere", "anew", "beside", "behind", "stands?", "stood", "whole"),
    *("go(?:es|ing)? on", "went on", "by night", "by day", "by itself", "(?:of|on) (?:its|their|his|one's) own"),
    *("of now", "in parts", "to the bit", "but for", "cures?", "knobs?"),
    *("(?:are|is) paid", "paid (?:by|for)", "unpaid"),
    r"\w*(?:(?:[mnr]al|tim|ogn|iti|gan|mar|ndard|nim|xim|hron|tom|riorit|ener|erial)is(?:e|ed|es|er|ers|ing|ation))",
    r"\w*(?:colour|behaviour|favour|neighbour|centred|centring|artefact|judgement|honour|labell|modelled|cancell|catalogue)\w*",
)
"""Words and phrases of this project alone, and British spellings, as regular expressions."""
PATTERNS = {phrase: re.compile(rf"(?<![-\w]){phrase}(?![-\w])") for phrase in PHRASES}
ANY_PHRASE = re.compile(rf"(?<![-\w])(?:{'|'.join(PHRASES)})(?![-\w])")

TEST_WORDS = (
    *(
        "who",
        "whom",
        "what",
        "whatever",
        "whoever",
        "nobody",
        "somebody",
        "said",
        "told",
        "tells",
        "lies",
        "stands",
        "drawn",
        "judged",
    ),
    *(
        "learnt",
        "taught",
        "teaches",
        "beside",
        "behind",
        "whole",
        "refused",
        "heard",
        "shown",
        "anew",
        "seen",
        "knob",
        "knobs",
        "cure",
        "paid",
        "of_now",
        "to_the_bit",
        "goes_on",
    ),
)
"""Words that names of tests do not contain: a name says the behavior, with the nouns of the field."""


def python_files(folders: Iterable[str] = PRODUCT) -> Iterator[Path]:
    for folder in folders:
        path = ROOT / folder
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


TOKEN = re.compile(
    r"""
    (?:\b[rRbBuUfF]{1,2})?
    (?: "{3}(?:\\.|[^\\])*?"{3} | '{3}(?:\\.|[^\\])*?'{3} | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' )
    | (?P<comment> [#][^\n]* )
    | (?P<name> (?<!\w)[^\W\d]\w* )
    """,
    re.DOTALL | re.VERBOSE,
)
"""Strings, comments and names of a source; the tokenizer of Python takes many times as long."""


@dataclass(frozen=True, slots=True)
class SourceWords:
    """The words of a Python file.

    Attributes:
        identifiers: number of uses of each name.
        packages: top-level names of absolute imports.
        imported: names imported from other packages.
        classes: names of its public classes.
        tests: names of its test functions.
        documentation: line numbers and lines of docstrings and comments, without code.
        messages: the same of other strings with a space.
    """

    identifiers: Counter[str]
    packages: frozenset[str]
    imported: frozenset[str]
    classes: tuple[str, ...]
    tests: tuple[str, ...]
    documentation: tuple[tuple[int, str], ...]
    messages: tuple[tuple[int, str], ...]

    @property
    def prose(self) -> tuple[tuple[int, str], ...]:
        """Documentation and messages."""
        return self.documentation + self.messages


@cache
def words_of(path: Path) -> SourceWords:
    """The words of a file, read once."""
    source = path.read_text()
    tokens = list(TOKEN.finditer(source))
    nodes = list(ast.walk(ast.parse(source)))
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    return SourceWords(
        identifiers=Counter(token["name"] for token in tokens if token["name"]),
        packages=frozenset(name.partition(".")[0] for name in _modules(nodes)),
        imported=frozenset(_imported(nodes)),
        classes=tuple(classes),
        tests=tuple(name for name in functions if name.startswith("test_")),
        documentation=(*_texts(docstrings), *_comments(source, tokens)),
        messages=tuple(_texts(node for node in nodes if node not in docstrings)),
    )


def _modules(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if not isinstance(node, ast.ImportFrom) or node.level:
            continue
        if (node.module or "").partition(".")[0] not in (*PRODUCT, *TESTS):
            yield from (alias.asname or alias.name for alias in node.names)


def _texts(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, _without_code(line)


def _comments(source: str, tokens: Iterable[re.Match[str]]) -> Iterator[tuple[int, str]]:
    line, position = 1, 0
    for token in tokens:
        if token["comment"]:
            line, position = line + source.count("\n", position, token.start()), token.start()
            yield line, _without_code(token["comment"])


def _without_code(text: str) -> str:
    return re.sub(r"`+[^`]*`+|\S*\w_\w\S*|\S+/\S+", " ", text)


@cache
def names(path: Path) -> Counter[str]:
    """Every use of every name in a file, except names of tests and names imported from other packages."""
    words = words_of(path)
    imported, counted = words.imported, words.identifiers
    return Counter({name: counted[name] for name in counted if name not in imported and not name.startswith("test_")})


def uses(folders: Iterable[str] = PRODUCT) -> Counter[str]:
    """How often each of ``WORDS`` is an identifier."""
    total: Counter[str] = Counter()
    for path in python_files(folders):
        counted = names(path)
        total.update({word: counted[word] for word in WORDS if counted[word]})
    return total


@cache
def parts_of(name: str) -> frozenset[str]:
    """The words of an identifier, in lower case."""
    return frozenset(re.split(r"_+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))


def components(folders: Iterable[str] = PRODUCT) -> Counter[str]:
    """How often each of ``WORDS`` is a part of a longer identifier."""
    total: Counter[str] = Counter()
    for path in python_files(folders):
        for name, number in names(path).items():
            parts = parts_of(name) - {name}
            total.update({word: number for word in WORDS if word in parts})
    return total


def repeated_classes(folders: Iterable[str] = PRODUCT) -> dict[str, list[str]]:
    """Public class names that several modules define."""
    defined = defaultdict(list)
    for path in python_files(folders):
        for name in words_of(path).classes:
            defined[name].append(str(path.relative_to(ROOT)))
    return {name: files for name, files in sorted(defined.items()) if len(files) > 1}


def repeated_files(folders: Iterable[str] = PRODUCT) -> dict[str, list[str]]:
    """File names that occur in several folders, packages' own files aside."""
    named = defaultdict(list)
    for path in python_files(folders):
        if not path.name.startswith("__"):
            named[path.name].append(str(path.relative_to(ROOT)))
    return {name: files for name, files in sorted(named.items()) if len(files) > 1}


def names_of_tests(words: Iterable[str] = TEST_WORDS) -> list[str]:
    """``file: name`` of the test functions that have one of these words in their name."""
    names = [f"{path.relative_to(ROOT)}: {name}" for path in python_files(("tests",)) for name in words_of(path).tests]
    return [name for name in names if any(f"_{word}_" in f"_{name.partition(': test_')[2]}_" for word in words)]


def per_thousand(path: Path, word: str = DOCS_WORD) -> float:
    """How often a word occurs in 1,000 words of a page."""
    text = re.sub(r"```.*?```", " ", path.read_text(), flags=re.S)
    words = re.findall(r"[A-Za-z][A-Za-z'-]*", text.lower())
    return 1000 * words.count(word) / max(len(words), 1)


def phrase_places(folders: Iterable[str] = (*PRODUCT, *TESTS)) -> dict[str, list[str]]:
    """Each of ``PHRASES`` in prose (of tests: documentation) -> ``file:line: text`` of its places."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in python_files(folders):
        words = words_of(path)
        in_tests = path.relative_to(ROOT).parts[0] in TESTS
        _add_places(places, path, words.documentation if in_tests else words.prose)
    return dict(places)


def phrase_places_of_configs() -> dict[str, list[str]]:
    """The same of comments and metadata of the shipped YAML; names and titles are not prose."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(CONFIGS.rglob("*.yaml")):
        _add_places(places, path, _metadata(path.read_text()))
    return dict(places)


def phrase_places_of_pages() -> dict[str, list[str]]:
    """The same of the hand-written pages, without their code; tables of tried models quote errors of libraries."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "README.md"]):
        if not path.name.startswith("breadth-"):
            text = re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), path.read_text(), flags=re.S)
            _add_places(places, path, [(n, _without_code(line)) for n, line in enumerate(text.splitlines(), 1)])
    return dict(places)


def _metadata(text: str) -> Iterator[tuple[int, str]]:
    in_metadata = False
    for number, line in enumerate(text.splitlines(), 1):
        in_metadata = line.startswith("about:") or (in_metadata and (not line or line[0] in " #"))
        prose = line if in_metadata else "".join(re.findall(r"(?:^|\s)#.*", line))
        if not re.match(r"\s*(?:paper_title|title|name):", line):
            yield number, _without_code(prose)


def _add_places(places: dict[str, list[str]], path: Path, prose: Iterable[tuple[int, str]]) -> None:
    for number, text in prose:
        for phrase, pattern in PATTERNS.items() if ANY_PHRASE.search(text) else ():
            if pattern.search(text):
                places[phrase].append(f"{path.relative_to(ROOT)}:{number}: {text.strip()}")


def prose_per_thousand(word: str = DOCS_WORD, folders: Iterable[str] = PRODUCT) -> float:
    """How often a word occurs in 1,000 words of docstrings, comments and messages."""
    words = [
        w
        for path in python_files(folders)
        for _, t in words_of(path).prose
        for w in re.findall(r"[a-z][a-z'-]*", t.lower())
    ]
    return 1000 * words.count(word) / max(len(words), 1)


def main(folders: tuple[str, ...]) -> None:
    """Prints the counts of some folders."""
    if "--prose" in folders:
        folders = tuple(folder for folder in folders if folder != "--prose") or (*PRODUCT, *TESTS)
        for phrase, places in phrase_places(folders).items():
            print(f"{phrase}: {len(places)}", *places, sep="\n    ")
        return
    parts = components(folders)
    for word, number in uses(folders).most_common():
        print(f"{word:12} {number:5} uses, {parts[word]:5} as a part of a name")
    for name, files in (repeated_classes() | repeated_files()).items():
        if any(file.startswith(folders) for file in files):
            print(name, *files)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or PRODUCT)
