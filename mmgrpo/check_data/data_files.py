"""The data that rules check, each file read once; faults, rules and their application."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import CONFIGS, find_config, load_config, read_layers, shipped
from mmgrpo.config.registry import REWARDS
from mmgrpo.docgen.methods import MethodRow, method_index
from mmgrpo.docgen.papers import GROUPS, LEDGER, PaperRow, ledger
from mmgrpo.errors import MmgrpoError
from mmgrpo.system.folders import TOP
from mmgrpo.system.yamls import YamlError, parse_yaml_1_1

EXCEPTIONS = CONFIGS / "exceptions.json"
"""Items that a rule permits, each with its reason: rule -> item -> reason, or key -> reason."""


@final
class DataFiles:
    """The configurations, the ledger and the rewards that rules check."""

    def __init__(
        self,
        paths: Mapping[str, Path] | None = None,
        *,
        ledger_path: Path = LEDGER,
        groups: Mapping[str, tuple[str, str | None]] = GROUPS,
        rewards: Mapping[str, str] = REWARDS,
    ) -> None:
        """Reads nothing yet.

        Args:
            paths: name -> file of a configuration; None: the shipped ones.
            ledger_path: the ledger of papers.
            groups: contributions of papers, as ``GROUPS``.
            rewards: name -> "module:attribute".
        """
        self._paths = {name: find_config(name) for name in shipped()} if paths is None else dict(paths)
        self.ledger_path, self.groups, self.rewards = ledger_path, groups, rewards
        self._stated: dict[str, dict[str, Any]] = {}
        self._merged: dict[str, dict[str, Any]] = {}
        self._configs: dict[str, RunConfig] = {}
        self._folder = tempfile.TemporaryDirectory()
        self._num_files = 0

    def names(self, *folders: str) -> list[str]:
        """Names of the configurations in some of the folders, such as ``methods``; of all without a folder."""
        return [name for name in self._paths if not folders or name.partition("/")[0] in folders]

    def path(self, name: str) -> Path:
        """The file of a name, which may also be a shipped configuration that is not checked."""
        return self._paths[name] if name in self._paths else find_config(name)

    def label(self, item: str) -> str:
        """The path of a configuration's file, relative to the project; other items as they are."""
        if item not in self._paths:
            return item
        path = self._paths[item].resolve()
        return path.relative_to(TOP).as_posix() if path.is_relative_to(TOP) else str(path)

    def stated(self, name: str) -> dict[str, Any]:
        """The values of a file without its includes, as a parser of YAML 1.1 reads them; do not change them."""
        if name not in self._stated:
            self._stated[name] = parse_yaml_1_1(self.path(name).read_text(encoding="utf-8")) or {}
        return self._stated[name]

    def merged(self, name: str) -> dict[str, Any]:
        """The values of a file merged on top of its includes; do not change them."""
        if name not in self._merged:
            self._merged[name] = read_layers(self.path(name))
        return self._merged[name]

    def config(self, name: str) -> RunConfig:
        """The resolved configuration of a file."""
        if name not in self._configs:
            self._configs[name] = load_config(self.path(name))
        return self._configs[name]

    def combined(self, *names: str | Path, **values: Any) -> RunConfig:
        """The configuration of a file that includes some names or files, and states some values."""
        files = [self.path(name) if isinstance(name, str) else name for name in names]
        named = {"about": {"name": "combined"}, **values}  # the default, the file's own name, differs between files
        return load_config(self.written({"include": [str(file) for file in files], **named}))

    def written(self, values: Mapping[str, Any]) -> Path:
        """A file of these values, which exists as long as this object."""
        self._num_files += 1
        path = Path(self._folder.name) / f"run{self._num_files}.yaml"
        path.write_text(json.dumps(values), encoding="utf-8")
        return path

    @cached_property
    def ledger_rows(self) -> dict[str, PaperRow]:
        """Line in the ledger -> its row."""
        return {f"{self.ledger_path.name}, line {num}": row for num, row in enumerate(ledger(self.ledger_path), 1)}

    @cached_property
    def method_rows(self) -> list[MethodRow]:
        """The shipped methods."""
        return [row for row in method_index() if row.include in shipped("methods")]

    def exceptions(self, rule: str) -> Mapping[str, Any]:
        """What a rule permits, by item."""
        return json.loads(EXCEPTIONS.read_text(encoding="utf-8"))[rule]


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything that is no mapping."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def is_under(key: str, parents: Iterable[str]) -> bool:
    """Whether a dotted key is one of the parents or within one."""
    return any(key == parent or key.startswith(f"{parent}.") for parent in parents)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the data.

    Attributes:
        rule: name of the rule.
        file: file, line of the ledger, or name of the reward.
        key: dotted key; empty for the complete file.
        message: value, allowed values and what to change.
    """

    rule: str
    file: str
    key: str
    message: str

    def __str__(self) -> str:
        """In one line."""
        return ": ".join(part for part in (self.file, self.key, f"{self.message} [{self.rule}]") if part)


Finding = tuple[str, str]
"""Dotted key, empty for the complete item, and message of a fault."""

Check = Callable[[DataFiles, str], Iterator[Finding]]
"""The faults of one item."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the data.

    Attributes:
        name: of the function, with dashes.
        items: names of the items that it checks.
        check: the function.
    """

    name: str
    items: Callable[[DataFiles], Iterable[str]]
    check: Check


def rule_of(check: Check, *folders: str, items: Callable[[DataFiles], Iterable[str]] | None = None) -> Rule:
    """A rule of a function.

    Args:
        check: the function; its name is the rule's.
        *folders: folders of the configurations that it checks; none: all.
        items: other items.

    Returns:
        The rule.
    """
    name = getattr(check, "__name__", "").replace("_", "-")
    return Rule(name, items or (lambda data: data.names(*folders)), check)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of some rules.

    Attributes:
        faults: in the order of the rules.
        num_items: number of items checked by each rule.
    """

    faults: tuple[Fault, ...]
    num_items: Mapping[str, int]

    @property
    def summary(self) -> str:
        """Counts of faults, rules and checks in one line."""
        counts = len(self.faults), len(self.num_items), sum(self.num_items.values())
        return "{} faults; {} rules, {} checks".format(*counts)


def apply_rules(rules: Sequence[Rule], data: DataFiles) -> Report:
    """Applies rules to data; the error that an item raises is a fault of it."""
    faults: list[Fault] = []
    num_items: dict[str, int] = {}
    for rule in rules:
        try:
            items = list(rule.items(data))
        except MmgrpoError as error:
            faults.append(Fault(rule.name, "", "", str(error)))
            items = []
        for item in items:
            faults += [Fault(rule.name, data.label(item), key, text) for key, text in _findings(rule, data, item)]
        num_items[rule.name] = len(items)
    return Report(tuple(faults), num_items)


def _findings(rule: Rule, data: DataFiles, item: str) -> Iterator[Finding]:
    try:
        yield from rule.check(data, item)
    except KeyError as error:
        yield "", str(error) if isinstance(error, MmgrpoError) else f"has no key {error}"
    except (MmgrpoError, YamlError) as error:
        yield "", str(error)
    except (AttributeError, TypeError, ValueError) as error:  # a value of another type than the rule expects
        yield "", f"{type(error).__name__}: {error}"
