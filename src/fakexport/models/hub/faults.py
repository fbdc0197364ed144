"""Errors of the hub. Each message is a single line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fakexport.error import FakexportError, first_line, type_and_line
from fakexport.models.hub.repository_name import HubName


class HubError(FakexportError, ValueError):
    """A repository, one of its revisions or one of its files cannot be read. The message is a single line."""


class MissingFile(HubError):
    """The repository exists, but lacks a file. `commit` is None if the hub did not report it."""

    def __init__(self, message: str, commit: str | None) -> None:
        super().__init__(message)
        self.commit = commit


def import_hub(name: HubName) -> Any:
    """Import `huggingface_hub`, or raise a `HubError`."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise HubError(f"{name} needs huggingface_hub: pip install huggingface_hub") from error
    return huggingface_hub


@contextmanager
def hub_faults(name: HubName, file: str) -> Iterator[None]:
    """Convert errors of `huggingface_hub` and its HTTP library to a `HubError`, or to a `MissingFile`.

    If `file` is empty, the block reads the list of files.
    """
    from huggingface_hub import constants, errors

    try:
        yield
    except HubError:
        raise
    except errors.RemoteEntryNotFoundError as error:
        commit = error.response.headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT)
        raise MissingFile(f"{name} has no {file or 'such folder'}", commit) from error
    except errors.LocalEntryNotFoundError as error:
        raise _not_cached(name, file, error.__cause__ or error) from error
    except errors.OfflineModeIsEnabled as error:
        raise _not_cached(name, file, error) from error
    except errors.HFValidationError as error:
        raise HubError(f"{name}: {first_line(error)}") from error
    except errors.HfHubHTTPError as error:
        raise HubError(f"{name}: {_answered(name, file, error)}") from error
    except OSError as error:
        raise HubError(
            f"{name}: {error.filename or _shown(file)}: {error.strerror or first_line(error)}"
        ) from error
    except Exception as error:  # The HTTP library and its errors depend on the version.
        raise _not_cached(name, file, error) from error


def endpoint() -> str:
    """Return the URL of the hub. The environment variable `HF_ENDPOINT` can change it."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _not_cached(name: HubName, file: str, cause: BaseException) -> HubError:
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return HubError(
            f"{name}: {_shown(file)} is not in the cache, and offline mode is on: unset HF_HUB_OFFLINE, "
            f"or run `{_download(name, file)}` on a machine that can reach the hub"
        )
    return HubError(
        f"{name}: cannot reach {endpoint()} ({type_and_line(cause)}), and {_shown(file)} is not in the "
        "cache: check the connection, the proxy and HF_ENDPOINT"
    )


def _download(name: HubName, file: str) -> str:
    revision = f" --revision {name.revision}" if name.revision else ""
    return " ".join(filter(None, ["hf download", name.repository, file and name.path(file)])) + revision


def _shown(file: str) -> str:
    return file or "the list of its files"


def _answered(name: HubName, file: str, error: Any) -> str:
    """Return an explanation of the hub's error response, and what to do."""
    from huggingface_hub import errors

    page = f"{endpoint()}/{name.repository}"
    if isinstance(error, errors.GatedRepoError):
        return f"the repository is gated: accept its conditions at {page}, then {_log_in()}"
    if isinstance(error, errors.DisabledRepoError):
        return f"the hub has disabled access to the repository, see {page}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository has no revision {name.revision!r}: use a branch, a tag or a commit of {page}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"no folder and no repository on {endpoint()} has this name, or the repository is "
            f"private: check the name; for a private repository, {_log_in()}"
        )
    return _status(error.response.status_code, _shown(file))


def _status(status: int, file: str) -> str:
    if status in (401, 403):
        return f"{endpoint()} denies access to {file} (status {status}): {_log_in()}"
    if status == 429:
        return f"{endpoint()} received too many requests: try again later, or {_log_in()}"
    return f"{endpoint()} returned status {status} for {file}: try again later"


def _log_in() -> str:
    from huggingface_hub import get_token

    if get_token() is None:
        return "run `hf auth login` or set HF_TOKEN"
    return "use the token of an account that has access (`hf auth login`, HF_TOKEN)"
