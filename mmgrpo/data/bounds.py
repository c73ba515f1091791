"""Limits of the expanded size of data files: a few kilobytes can expand to gigabytes and exhaust the machine."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mmgrpo.data.prompt_media import require_fetch_allowed
from mmgrpo.errors import DataError
from mmgrpo.system.yamls import YamlError, parse_yaml

if TYPE_CHECKING:
    import pyarrow as pa

MAX_EXPANSION = 200
"""Maximal bytes in memory per byte of a file that expands beyond ``MIN_BYTES``."""

MIN_BYTES = 2**28
"""Bytes that any file may expand to."""

_MAX_CHECKED_BYTES = 2**26  # larger parquet files of a folder are not read twice


def _arrow_stream(codec: str) -> Callable[[Path], IO[bytes]]:
    """Returns a function that opens a file of a codec for which Python has no module."""

    def open_stream(path: Path) -> IO[bytes]:
        import pyarrow as pa

        return pa.CompressedInputStream(pa.OSFile(str(path)), codec)  # type: ignore[return-value]

    return open_stream


_COMPRESSED: dict[bytes, tuple[str, Callable[[Path], IO[bytes]]]] = {
    b"\x1f\x8b": ("gzip", gzip.open),  # type: ignore[dict-item]
    b"BZh": ("bzip2", bz2.open),  # type: ignore[dict-item]
    b"\xfd7zXZ\x00": ("xz", lzma.open),  # type: ignore[dict-item]
    b"\x28\xb5\x2f\xfd": ("zstd", _arrow_stream("zstd")),
    b"\x04\x22\x4d\x18": ("lz4", _arrow_stream("lz4")),
}
"""Formats by their first bytes: ``datasets`` unpacks files of any name."""

_HEAD_BYTES = 8


def limit_of(path: Path) -> int:
    """Maximal bytes of a file in memory."""
    return max(MIN_BYTES, MAX_EXPANSION * path.stat().st_size)


def parquet_batches(path: Path) -> tuple[Iterator[pa.RecordBatch], pa.Schema]:
    """The record batches of a parquet file, read lazily.

    Args:
        path: path of the file.

    Returns:
        The batches, and their schema.

    Raises:
        DataError: the file is no parquet file; during iteration: it expands beyond ``limit_of``.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error

    def batches() -> Iterator[pa.RecordBatch]:
        num_bytes, limit = 0, limit_of(path)
        try:
            for batch in file.iter_batches(batch_size=256):
                num_bytes += _size_of(batch)
                _require_within(path, num_bytes, limit)
                yield batch
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is not a readable parquet file: {error}") from error

    return batches(), file.schema_arrow


def require_bounded(folder: Path) -> None:
    """Checks the card, the archives and the compressed files of a folder before ``datasets`` reads them.

    Args:
        folder: folder of a dataset.

    Raises:
        DataError: a file expands beyond ``limit_of``, or the card is invalid YAML or exceeds the limits of YAML.
    """
    _require_plain_card(folder / "README.md")
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
        except OSError:  # a file that cannot be opened is not unpacked either; its reader raises the error
            continue
        if path.suffix == ".zip" or head.startswith(b"PK\x03\x04"):
            _require_within(path, _zip_size(path), limit_of(path))
        elif packed := next((packed for mark, packed in _COMPRESSED.items() if head.startswith(mark)), None):
            _require_stream(path, *packed)
        elif path.stat().st_size <= _MAX_CHECKED_BYTES:
            if path.suffix == ".parquet":
                for _ in parquet_batches(path)[0]:
                    pass
            elif path.suffix == ".arrow":
                _require_arrow(path)


def refuse_fetching_card(folder: Path) -> None:
    """Raises DataError if the card of a folder references remote files, which ``load_dataset`` would fetch."""
    from huggingface_hub import metadata_load

    card = folder / "README.md"
    try:
        configs = (metadata_load(card) or {}).get("configs") if card.is_file() else None
    except Exception:  # load_dataset raises the error of an invalid card
        return
    for text in _texts_in(configs):
        require_fetch_allowed(text, str(card), allow_fetch=False)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(inner)


def _require_within(path: Path, num_bytes: int, limit: int) -> None:
    if num_bytes > limit:
        raise DataError(
            f"{path} has {path.stat().st_size} bytes and expands to more than {limit}, as a file made to exhaust "
            "memory does; store it as several files, or uncompressed as JSON lines"
        )


def _size_of(batch: pa.RecordBatch) -> int:
    """Bytes of a batch with decoded dictionaries, as in its rows."""
    import pyarrow as pa

    columns = (column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch)
    return sum(column.nbytes for column in columns)


def _require_arrow(path: Path) -> None:
    """Checks the batches of an arrow file, which may be compressed; any other file is not checked."""
    import pyarrow as pa

    num_bytes, limit = 0, limit_of(path)
    with path.open("rb") as file:
        try:
            batches: Any = pa.ipc.open_stream(file)
        except pa.ArrowInvalid:
            file.seek(0)
            try:
                reader = pa.ipc.open_file(file)
            except pa.ArrowInvalid:
                return
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        try:
            for batch in batches:
                num_bytes += _size_of(batch)
                _require_within(path, num_bytes, limit)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is not a readable arrow file: {error}") from error


def _zip_size(path: Path) -> int:
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path} is not a readable zip file: {error}") from error


def _require_stream(path: Path, name: str, open_stream: Callable[[Path], Any]) -> None:
    import pyarrow as pa

    num_bytes, limit = 0, limit_of(path)
    try:
        with open_stream(path) as stream:
            while chunk := stream.read(2**20):
                num_bytes += len(chunk)
                _require_within(path, num_bytes, limit)
    except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a readable {name} file: {error}") from error


def _require_plain_card(card: Path) -> None:
    """Checks that the card's YAML is within the limits of ``parse_yaml``: anchors can expand to billions of values."""
    try:
        lines = card.read_text(encoding="utf-8-sig").splitlines() if card.is_file() else []
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{card} cannot be read as UTF-8 text: {error}") from error
    marks = [number for number, line in enumerate(lines) if line.rstrip() == "---"][:2]
    if len(marks) == 2 and not any(line.strip() for line in lines[: marks[0]]):
        try:
            parse_yaml("\n".join(lines[marks[0] + 1 : marks[1]]))
        except YamlError as error:
            raise DataError(f"the card {card} is no YAML that can be read: {error}; remove or correct it") from error
