"""Reads rows of datasets with the values that the author of the data wrote."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.data.bounds import parquet_batches
from mmgrpo.data.prompt_media import holds_media
from mmgrpo.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset


def read_parquet(path: Path) -> Dataset:
    """The dataset of a parquet file, read in batches with a limit on its expanded size.

    Args:
        path: path of the file.

    Returns:
        The dataset.

    Raises:
        DataError: the file is no parquet file, repeats a column name, has a column of a type without a ``datasets``
            feature, or expands beyond the limit.
    """
    import pyarrow as pa
    from datasets import Dataset

    batches, schema = parquet_batches(path)
    if repeated := sorted(name for name, num in Counter(schema.names).items() if num > 1):
        raise DataError(f"{path} has several columns of the name {', '.join(repeated)}; rename all but one of each")
    table = pa.Table.from_batches(list(batches), schema)
    try:
        return Dataset(table)
    except ValueError as error:  # a type without a feature, such as map
        raise DataError(f"{path}: datasets cannot read its columns ({error}); store them as JSON texts") from error


def is_transformed(dataset: Any) -> bool:
    """Whether a dataset computes its rows on access: it is streamed, or ``set_transform`` was called."""
    from datasets import IterableDataset

    return isinstance(dataset, IterableDataset) or dataset.format["type"] == "custom"


def require_limit(source: Any, limit: int | None) -> None:
    """Raises DataError for a streamed dataset without a limit of rows."""
    datasets = sys.modules.get("datasets")  # a dataset exists only after this import, which is slow
    if datasets is None or limit is not None:
        return
    if isinstance(source, datasets.IterableDataset | datasets.IterableDatasetDict):
        raise DataError(
            "a streamed dataset may have no end, and prompts stay in memory: set limit, the number of rows to read "
            "(prompts.limit in a configuration)"
        )


def transformed_rows(
    dataset: Any, where: str, stored: Collection[str], check: Callable[[Any, str], None]
) -> Iterator[Callable[[], Any]]:
    """Yields, for each row of a dataset that ``is_transformed``, a function that returns the row.

    The format of a streamed dataset is ignored, and its media in the columns ``stored`` are not decoded.

    Args:
        dataset: the dataset.
        where: name of the dataset in errors.
        stored: columns whose media are not decoded.
        check: called with the stored media of another column, and its name in errors, before they are decoded.

    Yields:
        Callable[[], Any]: reads the row; raises DataError if ``set_transform`` or decoding the row fails.

    Raises:
        DataError: the stream fails; later rows cannot be read.
    """
    from datasets import IterableDataset

    if not isinstance(dataset, IterableDataset):
        for number in range(len(dataset)):
            yield partial(read_row, partial(dataset.__getitem__, number), f"{where}, row {number}")
        return
    features = dataset.features
    plain = dataset.with_format(None)
    rows, number = iter(plain if features is None else plain.decode(False)), 0
    while (row := read_row(partial(next, rows, None), f"{where}, row {number} of the stream")) is not None:
        decode = partial(_decode_row, row, features, f"{where}, row {number}", stored, check)
        yield partial(read_row, decode, f"{where}, row {number}")
        number += 1


def _decode_row(
    row: dict[str, Any], features: Any, where: str, stored: Collection[str], check: Callable[[Any, str], None]
) -> dict[str, Any]:
    if features is None:
        return row
    for name in row.keys() - stored:
        if holds_media(features.get(name)):
            check(row[name], f"{where}, column '{name}'")
    return {name: decoded(value, features[name], media=name not in stored) for name, value in row.items()}


def read_row(read: Callable[[], Any], where: str) -> Any:
    """The result of a function. Raises DataError for any exception of a transform, a map or a decoder."""
    try:
        return read()
    except DataError:
        raise
    except Exception as error:  # foreign code of the dataset
        raise DataError(f"{where} cannot be read ({type(error).__name__}: {error})"[:500]) from error


def decoded(value: Any, feature: Any, *, media: bool = False) -> Any:
    """A stored value as ``datasets`` decodes it.

    Args:
        value: value of arrow as Python objects.
        feature: its ``datasets`` feature; ``Json`` is stored as text.
        media: whether to decode media too.

    Returns:
        The decoded value.
    """
    from datasets.features.features import decode_nested_example

    return decode_nested_example(feature if media else _with_stored_media(feature), value)


def _with_stored_media(feature: Any) -> Any:
    """The feature without decoding of images, audio and videos."""
    from datasets import Audio, Image, List, Video

    if isinstance(feature, Audio | Image | Video):
        return replace(feature, decode=False)
    if isinstance(feature, dict):
        return {name: _with_stored_media(inner) for name, inner in feature.items()}
    if isinstance(feature, List):
        return replace(feature, feature=_with_stored_media(feature.feature))
    return [_with_stored_media(inner) for inner in feature] if isinstance(feature, list) else feature


def without_null_keys(value: Any) -> Any:
    """A value of a dataset without the keys of nested objects that hold null.

    Arrow gives every object of a column the keys of all of them: ``{"x": 1}`` in a column with ``{"city": "Paris"}``
    becomes ``{"x": 1, "city": None}``. Nulls of the data's author are removed too, since arrow does not mark them.

    Args:
        value: any value; only dicts and lists are searched.

    Returns:
        The value without these keys.
    """
    if isinstance(value, dict):
        return {key: without_null_keys(inner) for key, inner in value.items() if inner is not None}
    return [without_null_keys(inner) for inner in value] if isinstance(value, list) else value
