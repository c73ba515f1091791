"""The Hugging Face hub: one-line explanations of load errors with a fix, and upload of folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mmgrpo.errors import ConfigError

MAX_MESSAGE = 400


def explain_load_error(source: str, error: BaseException, *, revision: str | None = None, kind: str = "model") -> str:
    """Returns the reason for a load error, with a fix if the hub or the path is the cause; else the error, on one line.

    Args:
        source: the requested hub id or path.
        error: the error of a library; its causes count too.
        revision: the requested revision.
        kind: ``model`` or ``dataset``.

    Returns:
        A clause that follows "cannot be loaded: ".
    """
    causes = list(_causes(error))
    for explain in (_is_file, _revision, _gated, _unknown, _no_path, _offline, _unreachable):
        reason = explain(source, causes, revision or "main", kind)
        if reason is not None:
            return reason
    is_plain = isinstance(error, (OSError, ValueError)) and f"{error}"
    message = " ".join((f"{error}" if is_plain else f"{type(error).__name__}: {error}").split())
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} ..."


def push(folder: Path, repository: str, *, public: bool, message: str) -> str:
    """Uploads a folder as a model to the hub; creates the repository if needed.

    Args:
        folder: the folder to upload.
        repository: ``owner/name``.
        public: whether a new repository is public.
        message: commit message.

    Returns:
        The URL of the commit.

    Raises:
        ConfigError: the name is invalid, no token is set, or the hub rejects the upload or cannot be reached.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError(f"{repository!r} is not a valid repository name (owner/name): {error}") from error
    if get_token() is None:
        raise ConfigError(
            f"{repository} cannot be written: you are not logged in; log in (hf auth login), or set HF_TOKEN"
        )
    api = HfApi()
    try:
        api.create_repo(repository, repo_type="model", private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, repo_type="model", folder_path=folder, commit_message=message, ignore_patterns=[".*"]
        )
    except Exception as error:  # errors of the hub and the network have no common class
        raise ConfigError(f"{repository} cannot be written: {explain_load_error(repository, error)}") from error
    return str(commit.commit_url)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_file(source: str, causes: list[BaseException], revision: str, kind: str) -> str | None:
    if kind != "model" or not os.path.isfile(source):
        return None
    return "it is a file: give the folder with the weights and the configuration, as save_pretrained writes it"


def _revision(source: str, causes: list[BaseException], revision: str, kind: str) -> str | None:
    from huggingface_hub.errors import RevisionNotFoundError

    if not _any(causes, RevisionNotFoundError):
        return None
    return f"the hub's {kind} has no revision {revision!r}; its branches and tags are listed at {_page(source, kind)}"


def _gated(source: str, causes: list[BaseException], revision: str, kind: str) -> str | None:
    from huggingface_hub.errors import GatedRepoError

    if not _any(causes, GatedRepoError):
        return None
    page = _page(source, kind)
    return f"it is gated: accept its conditions at {page} and log in (hf auth login), or give the path of a copy"


def _unknown(source: str, causes: list[BaseException], revision: str, kind: str) -> str | None:
    from huggingface_hub.errors import RepositoryNotFoundError

    if not _any(causes, RepositoryNotFoundError):
        return None
    return f"the hub has no such {kind}, or it is private: check the name, log in (hf auth login), or give a path"


def _no_path(source: str, causes: list[BaseException], revision: str, kind: str) -> str | None:
    is_path = source.startswith(("/", ".", "~")) or source.count("/") > 1
    if not is_path or os.path.exists(source):
        return None
    return "there is no such path; a hub id is owner/name"


def _offline(source: str, causes: list[BaseException], revision: str, kind: str) -> str | None:
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE or not any(map(_is_connection, causes)):
        return None
    return f"it is not in the local cache, and HF_HUB_OFFLINE is set: unset it, {_or_fetch(source, kind)}"


def _unreachable(source: str, causes: list[BaseException], revision: str, kind: str) -> str | None:
    if not any(map(_is_connection, causes)):
        return None
    return f"it is not in the local cache, and the hub cannot be reached: {_or_fetch(source, kind)}"


def _is_connection(error: BaseException) -> bool:
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    is_client_error = type(error).__module__.startswith("httpx") and not isinstance(error, HfHubHTTPError)
    return is_client_error or isinstance(error, (LocalEntryNotFoundError, ConnectionError, TimeoutError))


def _any(causes: list[BaseException], kind: type[BaseException]) -> bool:
    return any(isinstance(error, kind) for error in causes)


def _or_fetch(source: str, kind: str) -> str:
    arguments = f"--repo-type {kind} {source}" if kind != "model" else source
    return f"fetch it where there is a network (hf download {arguments}), or give the path of a copy"


def _page(source: str, kind: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{'' if kind == 'model' else f'{kind}s/'}{source}"
