"""Files of prompts at a URL, downloaded once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

from mmgrpo.errors import DataError
from mmgrpo.system.bounded_http import download
from mmgrpo.system.files import replace_bytes

MAX_BYTES = 2**30
TIMEOUT_S = 600.0


def is_url(source: str) -> bool:
    """Whether a source is a URL of a file."""
    return source.startswith(("https://", "http://"))


def suffix_of(source: str | Path) -> str:
    """The ending of the file of a path or URL, such as ``.txt``."""
    return Path(urlsplit(source).path if isinstance(source, str) else source).suffix


def downloaded(url: str) -> Path:
    """Downloads a file into the folder ``mmgrpo`` of ``HF_HOME``; a file that is there is not downloaded again.

    Args:
        url: the URL. Its file is expected not to change.

    Returns:
        The path of the file.

    Raises:
        DataError: it cannot be downloaded, with the cause and what to do.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import WeakFileLock

    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    path = Path(constants.HF_HOME) / "mmgrpo" / f"{key}-{Path(urlsplit(url).path).name}"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(f"{path}.lock"):
        if not path.exists():  # another process of the job may have written it
            try:
                body = download(url, limit=MAX_BYTES, timeout_s=TIMEOUT_S)
            except DataError as error:
                raise DataError(f"{error}; download it where there is a network, and name its path") from error
            replace_bytes(path, body)
    return path
