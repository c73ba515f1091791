"""Loads prompts from files, folders, datasets of the hub and Python functions."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from mmgrpo.config import HeldOutPromptsConfig, PromptsConfig, ReadingConfig
from mmgrpo.data.arrow_values import (
    decoded,
    is_transformed,
    read_parquet,
    read_row,
    require_limit,
    transformed_rows,
    without_null_keys,
)
from mmgrpo.data.bounds import refuse_fetching_card, require_bounded
from mmgrpo.data.column_maps import MEDIA_COLUMNS, map_columns, prompt_column, renamed_media, require_column_map
from mmgrpo.data.json_texts import json_of, row_of, text_of
from mmgrpo.data.procedural_prompts import is_procedural, procedural_prompts
from mmgrpo.data.prompt_media import (
    COLUMNS,
    StoredMedium,
    holds_media,
    hub_folders,
    missing_path_message,
    require_reachable,
    stored_items,
)
from mmgrpo.data.prompt_rows import ROW_FORMATS, prompt_of_row, row_format_of
from mmgrpo.data.unreadable_rows import UnreadableRows
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.system.hub import explain_load_error
from mmgrpo.system.remote_files import downloaded, is_url, suffix_of
from mmgrpo.system.site_pages import page_url
from mmgrpo.system.targets import import_python_target, is_python_target
from mmgrpo.types import Prompt

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

logger = logging.getLogger(__name__)

_HUB_PART = re.compile(r"[\w.-]+/[\w.-]+:.+")
"""``owner/name:part``, a configuration or a file of a dataset of the hub."""

_SPLIT_FILES = ("{}_metadata.jsonl", "{}.jsonl", "{}.json", "{}.parquet", "{}.txt")


def load_prompts(
    source: str | Path | Dataset | DatasetDict,
    *,
    split: str | None = None,
    columns: Mapping[str, Any] | None = None,
    limit: int | None = None,
    image_columns: Sequence[str] = (),
    outside_media: Sequence[Literal["urls", "paths"]] = (),
    on_error: Literal["raise", "skip"] = "raise",
) -> list[Prompt]:
    """The prompts of a file, a folder, a dataset of the Hub or a Python function.

    ========================================  =========================================================================
    source                                    read as
    ========================================  =========================================================================
    ``prompts.txt``                           one prompt per line, also one with ``#``; not blank ones
    ``rows.jsonl``, ``rows.json``             one object per line; a list of objects
    ``rows.parquet``                          one prompt per row
    ``https://.../rows.jsonl``                a file of these endings, downloaded once into ``HF_HOME``
    a folder with ``{split}.txt`` or other    that file, flow_grpo's ``{split}_metadata.jsonl`` included
    a folder of ``Dataset.save_to_disk``      that dataset
    another folder, or ``owner/name``         ``datasets.load_dataset``; ``owner/name:subset`` names a configuration,
                                              ``owner/name:train.parquet`` one file of the repository
    ``python:module:attribute``               a function without arguments that returns prompts or a dataset, or a list
    a live ``datasets.Dataset``               itself, in any format; an ``IterableDataset`` needs ``limit``
    ========================================  =========================================================================

    Rows may have the layout of TRL, verl, EasyR1 or ms-swift; see ``docs/how-to/data.md``. ``prompt`` (or, in rows
    without it, ``messages`` or ``problem``) is a text or a list of chat messages, ``negative_prompt`` the negative
    prompt, and ``image``/``images``/``video``/``videos``/``audio``/``audios`` are the media of the prompt (paths are
    relative to the file's folder and remain paths; ``video`` may be a list of frames). Every other column is passed
    to the rewards. Images and audio stored in a dataset are decoded on each access and use no memory in between.

    Args:
        source: a source of the table.
        split: split of a folder or dataset, or a part of it (``train[:-500]``); required if there are several.
        columns: columns that prompts and rewards read -> sources in the rows, as ``map_columns`` takes them.
        limit: maximal number of prompts.
        image_columns: further columns of images, one or a list each (masks, edges), loaded like ``image``.
        outside_media: media that may be outside of the file's folder. ``urls``: images, and media in columns for the
            rewards, may be on the network; videos of the prompt may not. ``paths``: absolute ones, ``..`` and links,
            always allowed for a live dataset.
        on_error: ``raise`` for unreadable rows, or ``skip`` them with a warning that counts and names them.

    Returns:
        At least one prompt, in the order of the source.

    Raises:
        DataError: the source is missing, empty or malformed (with the line or row and a fix); or a setting
            has no effect on the source.
        ConfigError: a ``python:`` source does not exist.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit must be at least 1 or absent, got {limit}")
    if unknown := [kind for kind in outside_media if kind not in ("urls", "paths")]:
        raise DataError(f"outside_media is a list of urls and paths, got {', '.join(map(repr, unknown))}")
    require_limit(source, limit)
    unreadable = UnreadableRows(skip=on_error == "skip")
    require_column_map(columns or {})
    rules = _ReadingRules(dict(columns or {}), unreadable, tuple(image_columns), frozenset(outside_media))
    read = (
        _read(str(source), split, rules) if isinstance(source, str | Path) else _from_live_dataset(source, split, rules)
    )
    where = source if isinstance(source, str | Path) else "the dataset"
    prompts = list(islice(read, limit))
    unreadable.warn(str(where), len(prompts))
    if not prompts:
        raise DataError(f"{where} holds no prompts; it needs at least one")
    for name in rules.image_columns:
        if not any(name in prompt.columns for prompt in prompts):
            names = ", ".join(dict.fromkeys(column for prompt in prompts for column in prompt.columns)) or "none"
            raise DataError(
                f"image_columns names the column '{name}', which no row of {where} has; the columns are {names}"
            )
    return prompts


def load_prompts_of(
    config: PromptsConfig | HeldOutPromptsConfig | None, *, key: str = "prompts", note: str | None = None
) -> list[Prompt]:
    """The prompts of a section of the configuration; with several sources, each prompt has the label of its source.

    Args:
        config: the section; None: the configuration has none, which is an error.
        key: key of the section.
        note: note of the configuration, for the error of a missing source.

    Returns:
        The prompts, source by source.

    Raises:
        DataError: as ``load_prompts``; for a missing source with the setting and the file to provide.
        ConfigError: there is no section, or it has no source.
    """
    if config is None:
        raise ConfigError(f"the configuration has no {key}: section; set {key}.source to a file or dataset")
    _require_named(config, key)
    if config.source is not None:
        return _load(config, config.source, f"{key}.source", note)
    return [
        replace(prompt, source=part.logged_name)
        for number, part in enumerate(config.sources)
        for prompt in _load(part, part.source, f"{key}.sources[{number}].source", note)
    ]


def _load(config: ReadingConfig, source: str, key: str, note: str | None) -> list[Prompt]:
    try:
        return load_prompts(source, **reading_settings(config))
    except DataError as error:
        if is_url(source):
            raise DataError(f"{key}: {error}") from error
        if not _is_named(source) or Path(source).expanduser().exists():
            raise
        raise DataError(f"{key}: {error}; {_source_advice(config, key, note)}") from error


def _require_named(config: PromptsConfig | HeldOutPromptsConfig, key: str) -> None:
    if config.source is None and not config.sources:
        raise ConfigError(f"{key} names no source: set {key}.source to a file or dataset")


def reading_settings(config: ReadingConfig) -> dict[str, Any]:
    """Returns the settings of a section as keyword arguments of ``load_prompts``."""
    return config.model_dump(include=set(ReadingConfig.model_fields) - {"source"})


def require_source(config: PromptsConfig | HeldOutPromptsConfig, *, key: str, note: str | None) -> None:
    """Checks that the files of a section exist, before anything is loaded. Raises DataError, or ConfigError."""
    _require_named(config, key)
    parts = [(config, config.source, f"{key}.source")]
    parts += [(part, part.source, f"{key}.sources[{number}].source") for number, part in enumerate(config.sources)]
    for part, source, where in parts:
        if source is None or not _is_named(source) or not _is_path(source):
            continue
        path = Path(source).expanduser()
        if not path.exists():
            raise DataError(f"{where}: {missing_path_message(path)}; {_source_advice(part, where, note)}")


def _source_advice(config: ReadingConfig, key: str, note: str | None) -> str:
    """Returns how to provide the source, with the note of the configuration."""
    rows = f"rows with the column '{prompt_column(config.columns)}' as .jsonl, .json or .parquet"
    note_text = f"; note: {' '.join(note.split())}" if note else ""
    page = page_url("how-to/data")
    return f"put a prompt a line there as .txt, or {rows} ({page}), or set {key}=FILE_OR_DATASET{note_text}"


def _is_named(source: str) -> bool:
    """Whether a source is a path or a dataset of the hub: neither a URL, nor generated by a function."""
    return not (is_python_target(source) or is_procedural(source) or is_url(source))


def _is_path(source: str) -> bool:
    """Whether a source is a path, and cannot be a dataset of the hub."""
    path = Path(source).expanduser()
    if _HUB_PART.fullmatch(source):
        return False
    return path.suffix in _READERS or path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1


@final
@dataclass(frozen=True, slots=True)
class _ReadingRules:
    """Rules for reading rows: the map of columns, allowed locations of media, further image columns."""

    columns: Mapping[str, Any]
    unreadable: UnreadableRows
    image_columns: tuple[str, ...] = ()
    outside_media: frozenset[str] = frozenset()

    @property
    def text_column(self) -> str:
        """The column of the prompt, in rows whose columns are mapped."""
        return prompt_column(self.columns)

    @property
    def allow_fetch(self) -> bool:
        """Whether media may be on the network."""
        return "urls" in self.outside_media

    def roots(self, folder: Path | None) -> tuple[Path, ...] | None:
        """Returns the allowed folders of media: that of the file, or for a dataset of the hub its caches."""
        if "paths" in self.outside_media:
            return None
        return hub_folders() if folder is None else (folder,)

    def prompt(self, find: Callable[[], Any], where: str, folder: Path | None) -> Iterator[Prompt]:
        """Yields the prompt of a row; nothing for a row that is skipped."""
        return self.unreadable.read(
            lambda: prompt_of_row(
                map_columns(find(), self.columns, where),
                self.text_column,
                where=where,
                folder=folder,
                allow_fetch=self.allow_fetch,
                image_columns=self.image_columns,
                roots=self.roots(folder),
            )
        )


def _read(source: str, split: str | None, rules: _ReadingRules) -> Iterable[Prompt]:
    if is_python_target(source):
        return _from_python(source, split, rules)
    if is_procedural(source):
        _require_no_split(source, split)
        _require_no_rules(source, rules)
        return procedural_prompts(source)
    if is_url(source):
        _require_no_split(source, split)
        return _from_file(source, rules)
    path = Path(source).expanduser()
    if path.is_dir():
        return _from_folder(path, split, rules)
    if path.is_file():
        _require_no_split(source, split)
        return _from_file(path, rules)
    if _is_path(source):
        raise DataError(missing_path_message(path))
    return _from_hub(source, split, rules)


def _from_live_dataset(dataset: Dataset | DatasetDict, split: str | None, rules: _ReadingRules) -> Iterator[Prompt]:
    outside_media = rules.outside_media | {"paths"}  # the caller, who passed the dataset, trusts its media
    rules = replace(rules, outside_media=outside_media)
    return _from_dataset(_select_split(dataset, "the dataset", split), rules, "the dataset", None)


def _from_python(source: str, split: str | None, rules: _ReadingRules) -> Iterable[Prompt]:
    target = import_python_target(source)
    prompts: Any = target() if callable(target) else target
    if hasattr(prompts, "column_names"):
        return _from_live_dataset(prompts, split, rules)
    _require_no_split(source, split)
    _require_no_rules(source, rules)
    if not isinstance(prompts, Iterable):
        raise DataError(f"'{source}' must give a list of Prompt, got {type(prompts).__name__}")
    prompts = list(prompts)
    for row, prompt in enumerate(prompts):
        if not isinstance(prompt, Prompt):
            raise DataError(f"'{source}' must give a list of Prompt, its item {row} is a {type(prompt).__name__}")
    return prompts


def _from_file(source: str | Path, rules: _ReadingRules) -> Iterator[Prompt]:
    """Reads a file by its ending; a URL is downloaded first, and named in the errors of its rows."""
    reader = _READERS.get(suffix_of(source))
    if reader is None:
        raise DataError(f"cannot read prompts from {source}; known endings are {', '.join(_READERS)}")
    return reader(source if isinstance(source, Path) else downloaded(source), str(source), rules)


def _from_text(path: Path, where: str, rules: _ReadingRules) -> Iterator[Prompt]:
    _require_no_rules(where, rules)
    lines = [line.strip() for line in text_of(path).split("\n") if line.strip()]
    if num := sum(line.startswith("#") for line in lines):
        logger.warning(
            "%s: %d of %d lines begin with # and are prompts as well; remove them if not", where, num, len(lines)
        )
    return iter([Prompt(line) for line in lines])


def _from_json_lines(path: Path, where: str, rules: _ReadingRules) -> Iterator[Prompt]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                row = f"{where}, line {number}"
                yield from rules.prompt(partial(row_of, line, row), row, path.parent)


def _from_json(path: Path, where: str, rules: _ReadingRules) -> Iterator[Prompt]:
    try:
        rows = json_of(text_of(path), where)
    except json.JSONDecodeError as error:
        fix = "; one object per line belongs in a .jsonl file" if error.msg == "Extra data" else ""
        raise DataError(f"{where}, line {error.lineno} is not JSON: {error.msg}{fix}") from error
    if not isinstance(rows, list):
        raise DataError(f"{where} must hold a list of objects, got {type(rows).__name__}")
    for number, row in enumerate(rows):
        yield from rules.prompt(partial(_identity, row), f"{where}, item {number}", path.parent)


def _from_parquet(path: Path, where: str, rules: _ReadingRules) -> Iterator[Prompt]:
    return _from_dataset(read_parquet(path), rules, where=where, folder=path.parent)


_READERS: dict[str, Callable[[Path, str, _ReadingRules], Iterator[Prompt]]] = {
    ".txt": _from_text,
    ".jsonl": _from_json_lines,
    ".json": _from_json,
    ".parquet": _from_parquet,
}


def _from_folder(path: Path, split: str | None, rules: _ReadingRules) -> Iterator[Prompt]:
    from datasets import load_from_disk

    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        return _from_dataset(_select_split(load_from_disk(path), str(path), split), rules, str(path), path)
    files = [path / pattern.format(split) for pattern in _SPLIT_FILES if split is not None]
    for file in files:
        if file.is_file():
            return _from_file(file, rules)
    return _from_hub(str(path), split, rules)


def _from_hub(source: str, split: str | None, rules: _ReadingRules) -> Iterator[Prompt]:
    from datasets import load_dataset

    local = Path(source).is_dir()
    if local:
        require_bounded(Path(source))
        if not rules.allow_fetch:
            refuse_fetching_card(Path(source))
    name, _, part = (source, "", "") if local else source.partition(":")
    part_argument: dict[str, Any] = {"data_files" if Path(part).suffix in _READERS else "name": part} if part else {}
    try:
        loaded = load_dataset(name, **part_argument)
    except Exception as error:  # the library has no common class of errors
        cause = explain_load_error(name, error, kind="dataset")
        near = "" if local else f"; and as a path {missing_path_message(Path(source))}"
        raise DataError(f"as a dataset '{source}' cannot be loaded: {cause}{near}") from error
    return _from_dataset(_select_split(loaded, source, split), rules, source, Path(source) if local else None)


def _select_split(loaded: Any, source: str, split: str | None) -> Any:
    from datasets import DatasetDict, IterableDatasetDict

    if not isinstance(loaded, DatasetDict | IterableDatasetDict):
        _require_no_split(source, split)
        return loaded
    if split is None and len(loaded) == 1:
        return next(iter(loaded.values()))
    if split is not None and split in loaded:
        return loaded[split]
    if split is not None and {"[", "+"} & {*split} and isinstance(loaded, DatasetDict):
        return _part_of_splits(loaded, source, split)
    raise DataError(f"{source} has the splits {', '.join(map(str, loaded))}; got split={split!r}, name one of them")


def _part_of_splits(loaded: DatasetDict, source: str, split: str) -> Any:
    """The rows of a part in the notation of ``datasets``: ``train[:100]``, ``train[-10%:]``, ``train[:9]+test``."""
    from datasets import ReadInstruction, concatenate_datasets

    sizes = {str(name): len(part) for name, part in loaded.items()}
    try:
        bounds = ReadInstruction.from_spec(split).to_absolute(sizes)
    except (ValueError, AssertionError) as error:
        raise DataError(
            f"{source} has the splits {', '.join(sizes)}; split={split!r} is no part of them ({error}); write it as "
            "train[:100], train[-100:] or train[:10%]"
        ) from error
    parts: list[Any] = [
        loaded[part.splitname].select(range(part.from_ or 0, sizes[part.splitname] if part.to is None else part.to))
        for part in bounds
    ]
    return parts[0] if len(parts) == 1 else concatenate_datasets(parts)


def _from_dataset(dataset: Any, rules: _ReadingRules, where: str, folder: Path | None) -> Iterator[Prompt]:
    if is_transformed(dataset):
        stored = {rules.text_column, *(form.column for form in ROW_FORMATS), *MEDIA_COLUMNS, *rules.image_columns}
        stored |= {*renamed_media(rules.columns)}
        check = partial(require_reachable, allow_fetch=rules.allow_fetch, roots=rules.roots(folder))
        rows = transformed_rows(dataset, where, stored, check)
        return chain.from_iterable(
            rules.prompt(lambda read=read: without_null_keys(read()), f"{where}, row {number}", folder)
            for number, read in enumerate(rows)
        )
    return _from_table(dataset.with_format(None), rules, where, folder)


def _from_table(dataset: Any, rules: _ReadingRules, where: str, folder: Path | None) -> Iterator[Prompt]:
    dataset, columns = _with_media_names(dataset, rules.columns)
    rules = replace(rules, columns=columns)
    form = row_format_of({*dataset.column_names, *columns}, rules.text_column)
    if form is None:
        raise DataError(
            f"{where} has no column '{rules.text_column}'; set prompts.columns: {{prompt: COLUMN}} to one of "
            f"{dataset.column_names}"
        )
    media_columns = [
        name for name in (form.column, *MEDIA_COLUMNS, *rules.image_columns) if holds_media(dataset.features.get(name))
    ]
    encoded, plain = dataset.select_columns(media_columns).with_format("arrow"), dataset.remove_columns(media_columns)
    roots = rules.roots(folder)
    with_media = [name for name in plain.column_names if holds_media(plain.features[name])]
    as_stored = plain.select_columns(with_media).with_format("arrow")

    def row(number: int) -> dict[str, Any]:
        for name in with_media:  # before they are decoded, which would fetch them
            value, called = as_stored[number].column(name)[0].as_py(), f"{where}, row {number}, column '{name}'"
            require_reachable(value, called, allow_fetch=rules.allow_fetch, roots=roots)
        values = read_row(partial(plain.__getitem__, number), f"{where}, row {number}") if plain.column_names else {}
        values |= {name: _stored(encoded, number, name, rules.image_columns) for name in media_columns}
        return {name: without_null_keys(value) for name, value in values.items()}

    for number in range(len(dataset)):
        yield from rules.prompt(partial(row, number), f"{where}, row {number}", folder)


def _with_media_names(dataset: Any, columns: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """The dataset with the media of the prompt under the names of the prompt's columns, and the rest of the map."""
    names = {source: name for source, name in renamed_media(columns).items() if source in dataset.column_names}
    renamed = {source: name for source, name in names.items() if source != name}
    dataset = dataset.remove_columns([name for name in renamed.values() if name in dataset.column_names])
    return dataset.rename_columns(renamed), {
        name: source for name, source in columns.items() if name not in names.values()
    }


def _stored(table: Any, row: int, name: str, image_columns: Sequence[str]) -> Any:
    """A row's media as stored; images and audio of the prompt are read on access."""
    if name not in (*COLUMNS["image"], *COLUMNS["audio"], *image_columns):
        return decoded(table[row].column(name)[0].as_py(), table.features[name])
    return [StoredMedium(table, row, name, index) for index in range(len(stored_items(table, row, name)))]


def _identity(row: Any) -> Any:
    return row


def _require_no_split(source: str, split: str | None) -> None:
    if split is not None:
        raise DataError(f"{source} has no splits, so split={split!r} does nothing; remove it")


def _require_no_rules(source: str | Path, rules: _ReadingRules) -> None:
    if rules.columns:
        raise DataError(f"{source} has no columns, so columns={dict(rules.columns)!r} does nothing; remove it")
    settings = {"outside_media": rules.outside_media, "image_columns": rules.image_columns}
    if idle := [name for name, value in settings.items() if value]:
        verb = "does" if len(idle) == 1 else "do"
        raise DataError(f"{source} names no files, so {' and '.join(idle)} {verb} nothing; remove that")
