"""Read a hub repository at one commit, with the cache, token and endpoint of `huggingface_hub`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fakexport.models.hub.faults import HubError, MissingFile, endpoint, hub_faults, import_hub
from fakexport.models.hub.remote_header import RemoteHeader
from fakexport.models.hub.repository_name import HubName

MOST_CONFIG_BYTES = 16 << 20
MOST_INDEX_BYTES = 100_000_000
_AT_ONCE = 8
_TIMEOUT_S = 30
_MOST_RETRIES = 2
_COMMIT = re.compile(r"[0-9a-f]{40}")

CONFIG = "config.json"


@dataclass(frozen=True)
class Repository:
    """The files of a repository at a commit (40 hex digits), and its cached `config.json`, if any."""

    name: HubName
    commit: str
    config: Path | None

    @classmethod
    def open(cls, name: HubName) -> Repository:
        """Return the repository at the current commit of its revision, with its `config.json`.

        Raises:
            HubError: the repository cannot be reached, is gated, or does not exist. The message is a single
                line that says what to do.
        """
        try:
            found = _cached(name, CONFIG, name.revision, MOST_CONFIG_BYTES)
        except MissingFile as error:
            if error.commit is None:
                raise
            record_transfer(str(name.at(error.commit)), 0)
            return cls(name, error.commit, None)
        return cls(name, found.commit, found.path)

    @property
    def pinned(self) -> HubName:
        """The repository's name, pinned to its commit."""
        return self.name.at(self.commit)

    def file(self, file: str, *, most_bytes: int = MOST_CONFIG_BYTES) -> Path | None:
        """Return the cached path of a small file, after downloading the file if necessary. Return None if it
        does not exist.

        Raises:
            HubError: as for `open`; or the file is too large.
        """
        try:
            return _cached(self.name, file, self.commit, most_bytes).path
        except MissingFile:
            return None

    def in_cache(self, file: str) -> Path | None:
        """Return the path of a file of any size if it is cached, without using the network, or None."""
        hub = import_hub(self.name)
        found = hub.try_to_load_from_cache(self.name.repository, self.name.path(file), revision=self.commit)
        return Path(found) if isinstance(found, str) else None

    def headers(self, files: Iterable[str]) -> list[RemoteHeader | None]:
        """Read the headers of safetensors files concurrently. Return them in order, with None for a missing
        file.

        Raises:
            HubError: as for `open`; or the hub does not support range requests.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = list(pool.map(self._header, files))
        record_transfer(str(self.pinned), sum(header.transferred for header in found if header is not None))
        return found

    def _header(self, file: str) -> RemoteHeader | None:
        if (path := self.in_cache(file)) is not None:
            return RemoteHeader.of_file(path)
        hub = import_hub(self.name)
        url = hub.hf_hub_url(self.name.repository, self.name.path(file), revision=self.commit)
        try:
            with hub_faults(self.name, file):
                return RemoteHeader.read(url, self.name, file)
        except MissingFile:
            return None

    def names(self) -> list[str]:
        """Return the sorted names of the files in the repository or its folder.

        Raises:
            HubError: as for `open`.
        """
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

        import_hub(self.name)
        url = f"{endpoint()}/api/models/{self.name.repository}/tree/{self.commit}/{self.name.folder}"
        with hub_faults(self.name, file=""):
            answer = http_backoff(
                "GET",
                url.rstrip("/"),
                headers=build_hf_headers(),
                timeout=_TIMEOUT_S,
                max_retries=_MOST_RETRIES,
            )
            hf_raise_for_status(answer)
            listed = answer.json()
            paths = [str(entry["path"]) for entry in listed if entry.get("type") == "file"]
        record_transfer(str(self.pinned), len(answer.content))
        return sorted(path.rpartition("/")[2] for path in paths)


@dataclass(frozen=True)
class LocalFolder:
    """A local folder with the files of a repository. It has the same interface as `Repository`."""

    path: Path

    @property
    def name(self) -> str:
        """The name to use in messages."""
        return str(self.path)

    def file(self, file: str, *, most_bytes: int = MOST_CONFIG_BYTES) -> Path | None:
        """Return the path of a file, or None if it does not exist. The caller limits the size."""
        return self.in_cache(file)

    def in_cache(self, file: str) -> Path | None:
        """Return the path of a file, or None if it does not exist."""
        return path if (path := self.path / file).is_file() else None

    def headers(self, files: Iterable[str]) -> list[RemoteHeader | None]:
        """Return the headers of safetensors files, in order, with None for a missing file."""
        return [
            None if (path := self.in_cache(file)) is None else RemoteHeader.of_file(path) for file in files
        ]

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir() if path.is_file())


@dataclass(frozen=True)
class _Cached:
    path: Path
    commit: str


def _cached(name: HubName, file: str, revision: str | None, most_bytes: int) -> _Cached:
    """Return a file in the cache, after downloading it if necessary, or raise a `MissingFile` or `HubError`.

    Unlike `hf_hub_download`, this function does not wait for half a minute if the hub cannot be reached.
    """
    hub = import_hub(name)
    from huggingface_hub import errors

    path, place = name.path(file), {"repo_id": name.repository, "revision": revision}
    known = hub.try_to_load_from_cache(filename=path, **place) if _is_commit(revision) else None
    if isinstance(known, str):
        return _recorded(name, path, Path(known), 0)
    with hub_faults(name, file):
        try:
            found = hub.get_hf_file_metadata(hub.hf_hub_url(filename=path, **place))
        except (errors.RemoteEntryNotFoundError, errors.RevisionNotFoundError):
            raise
        except Exception as error:
            try:
                here = hub.hf_hub_download(filename=path, local_files_only=True, **place)
            except errors.LocalEntryNotFoundError:
                raise error from None
            return _recorded(name, path, Path(here), 0)
        if (found.size or 0) > most_bytes:
            raise HubError(f"{name}: {file} has {found.size:,} bytes; the limit is {most_bytes:,}")
        before = hub.try_to_load_from_cache(name.repository, path, revision=found.commit_hash)
        here = hub.hf_hub_download(filename=path, tqdm_class=_no_progress(), **place)
    is_new = not isinstance(before, str)
    return _recorded(name, path, Path(here), Path(here).stat().st_size if is_new else 0)


def _is_commit(revision: str | None) -> bool:
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def _recorded(name: HubName, path: str, place: Path, transferred: int) -> _Cached:
    """Record that the cached file `snapshots/COMMIT/PATH` was read. Return the file with its commit."""
    commit = place.parents[path.count("/")].name
    record_transfer(str(name.at(commit)), transferred)
    return _Cached(place, commit)


def _no_progress() -> Any:
    """Return a progress bar class without output, because the downloaded files are small."""
    from huggingface_hub.utils import tqdm

    class NoProgress(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # Otherwise, tqdm starts a thread that does not end.

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    return NoProgress


_LOG = logging.getLogger(__name__)
_FOUND: ContextVar[dict[str, int] | None] = ContextVar("_FOUND", default=None)


@contextmanager
def transfers_recorded() -> Iterator[dict[str, int]]:
    """Record the number of bytes that the block transfers, in the mapping that it yields.

    The mapping is from `hf:org/name@commit` to a number, which is 0 if everything was cached.
    """
    found: dict[str, int] = {}
    token = _FOUND.set(found)
    try:
        yield found
    finally:
        _FOUND.reset(token)


def record_transfer(name: str, nbytes: int) -> None:
    _LOG.debug("%s: %d bytes transferred", name, nbytes)
    found = _FOUND.get()
    if found is not None:
        found[name] = found.get(name, 0) + nbytes


SINGLE_FILE = "model.safetensors"
_INDEX = f"{SINGLE_FILE}.index.json"
_OTHER_NAMES = ("*.safetensors.index.json", "*.safetensors")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.bin.index.json", "*.gguf", "*.h5", "*.msgpack")
_MOST_NAMES = 3


@dataclass(frozen=True)
class WeightFiles:
    """The single file with the weights; or the index of the shards, and its path in the cache."""

    index: Path | None
    file: str


def weight_files(repository: Repository | LocalFolder) -> WeightFiles:
    """Return the safetensors file of a repository, or the index of its shards.

    `model.safetensors` has priority over an index, as in transformers.

    Raises:
        HubError: the repository has no safetensors file, has several without an index, or cannot be reached.
    """
    from huggingface_hub import constants

    if constants.is_offline_mode():
        if repository.in_cache(SINGLE_FILE) is not None:
            return WeightFiles(None, SINGLE_FILE)
        index = repository.file(_INDEX, most_bytes=MOST_INDEX_BYTES)
        if index is not None:
            return WeightFiles(index, _INDEX)
    names = repository.names()
    if SINGLE_FILE in names:
        return WeightFiles(None, SINGLE_FILE)
    if _INDEX in names:
        return WeightFiles(repository.file(_INDEX, most_bytes=MOST_INDEX_BYTES), _INDEX)
    return _other(repository, names)


def _other(repository: Repository | LocalFolder, names: list[str]) -> WeightFiles:
    for pattern in _OTHER_NAMES:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if len(found) > 1:
            raise HubError(
                f"{repository.name} has no {SINGLE_FILE} and no {_INDEX}, but {len(found)} files that match "
                f"{pattern} ({_listed(found)}): download the file that you need, and pass its path"
            )
        if found:
            is_index = found[0].endswith(".json")
            index = repository.file(found[0], most_bytes=MOST_INDEX_BYTES) if is_index else None
            return WeightFiles(index, found[0])
    pickled = [name for name in names if any(fnmatchcase(name, pattern) for pattern in _PICKLED)]
    if not pickled:
        raise HubError(f"{repository.name} has no safetensors files")
    raise HubError(
        f"{repository.name} has no safetensors files, and names and shapes of the weights in "
        f"{_listed(pickled)} cannot be read remotely: download the files, and pass the folder"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
