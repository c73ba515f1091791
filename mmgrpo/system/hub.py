"""The hub: why something cannot be had from it, in one line that says what to do, and how a folder gets there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mmgrpo.errors import ConfigError

MAX_SAID = 400


def why_not(source: str, error: BaseException, *, revision: str | None = None, kind: str = "model") -> str:
    """The reason in a line of our own where it is the hub's or the path's, else what the library said, on one line.

    Args:
        source: the hub id or path that was asked for.
        error: what a library raised; what it was raised from counts as well.
        revision: the revision that was asked for.
        kind: what it is, ``model`` or ``dataset``.

    Returns:
        A clause that follows "cannot be loaded: ".
    """
    found = list(_causes(error))
    for says in (_is_file, _revision, _gated, _unknown, _no_path, _offline, _unreachable):
        reason = says(source, found, revision or "main", kind)
        if reason is not None:
            return reason
    plain = isinstance(error, (OSError, ValueError)) and f"{error}"
    said = " ".join((f"{error}" if plain else f"{type(error).__name__}: {error}").split())
    return said if len(said) <= MAX_SAID else f"{said[:MAX_SAID]} ..."


def push(folder: Path, repository: str, *, public: bool, message: str) -> str:
    """Uploads a folder as a model of the hub, which is made if it is not there.

    Args:
        folder: what is uploaded, whole.
        repository: ``owner/name``.
        public: whether one that is made now is for everybody to see.
        message: of the commit.

    Returns:
        The address of the commit.

    Raises:
        ConfigError: it is no repository's name, nobody is logged in, or the hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError(f"{repository!r} is no name of a repository, owner/name: {error}") from error
    if get_token() is None:
        raise ConfigError(
            f"{repository} cannot be written: nobody is logged in; do so (hf auth login), or set HF_TOKEN"
        )
    api = HfApi()
    try:
        api.create_repo(repository, repo_type="model", private=not public, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository, repo_type="model", folder_path=folder, commit_message=message, ignore_patterns=[".*"]
        )
    except Exception as error:  # of the hub, the network and what lies between
        raise ConfigError(f"{repository} cannot be written: {why_not(repository, error)}") from error
    return str(done.commit_url)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_file(source: str, found: list[BaseException], revision: str, kind: str) -> str | None:
    if kind != "model" or not os.path.isfile(source):
        return None
    return "it is a file: give the folder that holds it with its configuration, as save_pretrained writes them"


def _revision(source: str, found: list[BaseException], revision: str, kind: str) -> str | None:
    from huggingface_hub.errors import RevisionNotFoundError

    if not _any(found, RevisionNotFoundError):
        return None
    return f"the hub's {kind} has no revision {revision!r}; its branches and tags are listed at {_page(source, kind)}"


def _gated(source: str, found: list[BaseException], revision: str, kind: str) -> str | None:
    from huggingface_hub.errors import GatedRepoError

    if not _any(found, GatedRepoError):
        return None
    page = _page(source, kind)
    return f"it is gated: accept its conditions at {page} and log in (hf auth login), or give the path of a copy"


def _unknown(source: str, found: list[BaseException], revision: str, kind: str) -> str | None:
    from huggingface_hub.errors import RepositoryNotFoundError

    if not _any(found, RepositoryNotFoundError):
        return None
    return f"the hub has no such {kind}, or it is private: check the name, log in (hf auth login), or give a path"


def _no_path(source: str, found: list[BaseException], revision: str, kind: str) -> str | None:
    is_path = source.startswith(("/", ".", "~")) or source.count("/") > 1
    if not is_path or os.path.exists(source):
        return None
    return "there is no such path; a hub id is owner/name"


def _offline(source: str, found: list[BaseException], revision: str, kind: str) -> str | None:
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE or not any(map(_is_connection, found)):
        return None
    return f"it is not in the local cache, and HF_HUB_OFFLINE is set: unset it, {_or_fetch(source, kind)}"


def _unreachable(source: str, found: list[BaseException], revision: str, kind: str) -> str | None:
    if not any(map(_is_connection, found)):
        return None
    return f"it is not in the local cache, and the hub cannot be reached: {_or_fetch(source, kind)}"


def _is_connection(error: BaseException) -> bool:
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    of_client = type(error).__module__.startswith("httpx") and not isinstance(error, HfHubHTTPError)
    return of_client or isinstance(error, (LocalEntryNotFoundError, ConnectionError, TimeoutError))


def _any(found: list[BaseException], kind: type[BaseException]) -> bool:
    return any(isinstance(error, kind) for error in found)


def _or_fetch(source: str, kind: str) -> str:
    what = f"--repo-type {kind} {source}" if kind != "model" else source
    return f"fetch it where there is a network (hf download {what}), or give the path of a copy"


def _page(source: str, kind: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{'' if kind == 'model' else f'{kind}s/'}{source}"
