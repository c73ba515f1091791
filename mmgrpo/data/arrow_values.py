"""Values of an arrow table as the author of the data wrote them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.data.bounds import parquet_batches
from mmgrpo.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


def read_parquet(path: Path) -> pa.Table:
    """The table of a parquet file, read part by part within bounds.

    Args:
        path: of the file.

    Returns:
        The table.

    Raises:
        DataError: the file is no parquet, or expands beyond the bounds.
    """
    import pyarrow as pa

    batches, schema = parquet_batches(path)
    return pa.Table.from_batches(list(batches), schema)


def is_transformed(dataset: Any) -> bool:
    """Whether the rows of a dataset are made as they are read: it is streamed, or ``set_transform`` was called."""
    from datasets import IterableDataset

    return isinstance(dataset, IterableDataset) or dataset.format["type"] == "custom"


def require_limit(source: Any, limit: int | None) -> None:
    """Raises DataError for a streamed dataset of which no number of rows is to be read."""
    from datasets import IterableDataset, IterableDatasetDict

    if isinstance(source, IterableDataset | IterableDatasetDict) and limit is None:
        raise DataError(
            "a streamed dataset may have no end, and prompts are kept in memory: say how many rows to read by limit "
            "(prompts.limit in a configuration), or give list(dataset.take(1000))"
        )


def decoded(value: Any, feature: Any) -> Any:
    """A stored value as ``datasets`` decodes it, but for media, which stay as they are stored.

    Args:
        value: of arrow, as Python objects.
        feature: of ``datasets``; its ``Json`` is stored as text.

    Returns:
        The value.
    """
    from datasets.features.features import decode_nested_example

    return decode_nested_example(_with_stored_media(feature), value)


def _with_stored_media(feature: Any) -> Any:
    """The feature with images, audio and videos that are not decoded."""
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

    Arrow gives every object of a column the keys of all of them: ``{"x": 1}`` beside ``{"city": "Paris"}`` becomes
    ``{"x": 1, "city": None}``. A null that the data's author wrote is removed too, for arrow does not tell them apart.

    Args:
        value: anything; only dicts and lists are looked through.

    Returns:
        The value.
    """
    if isinstance(value, dict):
        return {key: without_null_keys(inner) for key, inner in value.items() if inner is not None}
    return [without_null_keys(inner) for inner in value] if isinstance(value, list) else value
