"""Read the header of a safetensors file on the hub with range requests, without reading any tensor data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fakexport.files import open_regular
from fakexport.models.hub.faults import HubError
from fakexport.models.hub.repository_name import HubName

_LENGTH_BYTES = 8
_MOST_BYTES = 100_000_000
_TIMEOUT_S = 30
_MOST_RETRIES = 2
_CONTENT_RANGE = re.compile(r"bytes \d+-\d+/(\d+)")


@dataclass(frozen=True)
class RemoteHeader:
    """The header of a remote safetensors file. It has the interface of local files in the package `weights`.

    Args:
        path: Name of the file in the repository.
        size: Size of the whole file in bytes.
        content: The first bytes of the file: the length of the header, followed by the header.
        is_cached: Whether these bytes were read from the cache instead of being transferred.
    """

    path: str
    size: int
    content: bytes
    is_cached: bool = False

    @property
    def transferred(self) -> int:
        """Number of bytes that were transferred."""
        return 0 if self.is_cached else len(self.content)

    @property
    def header(self) -> bytes:
        """The JSON header; empty if the file is not a safetensors file."""
        return self.content[_LENGTH_BYTES:]

    @classmethod
    def of_file(cls, path: Path) -> RemoteHeader:
        """Return the header of a file in the cache."""
        with open_regular(path) as file:
            count = int.from_bytes(file.read_at(0, _LENGTH_BYTES), "little")
            content = file.read_at(0, _LENGTH_BYTES + min(count, _MOST_BYTES))
            return cls(path.name, file.size, content, is_cached=True)

    @classmethod
    def read(cls, url: str, name: HubName, file: str) -> RemoteHeader:
        """Return the header of the file at a URL.

        Raises:
            HubError: the server does not support range requests.
            Exception: errors of the HTTP library and `huggingface_hub`; see `hub_faults`.
        """
        length, size, final = _range(url, name, file, 0, _LENGTH_BYTES)
        count = int.from_bytes(length, "little")
        if count > min(_MOST_BYTES, size - _LENGTH_BYTES):
            return cls(file, size, length)  # The parser rejects it and reports why.
        header, _, _ = _range(final, name, file, _LENGTH_BYTES, count) if count else (b"", 0, "")
        return cls(file, size, length + header)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes, starting at `offset`. Bytes after the header are not available."""
        return self.content[offset : offset + length]


def _range(url: str, name: HubName, file: str, offset: int, count: int) -> tuple[bytes, int, str]:
    """Fetch `count` bytes from `offset`. Return them, the size of the file, and the URL that served them."""
    from huggingface_hub.utils import hf_raise_for_status, http_stream_backoff

    headers = {
        **_authorization(url),
        "Range": f"bytes={offset}-{offset + count - 1}",
        "Accept-Encoding": "identity",
    }
    with http_stream_backoff(
        "GET", url, headers=headers, timeout=_TIMEOUT_S, max_retries=_MOST_RETRIES
    ) as response:
        hf_raise_for_status(response)
        total = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status_code != 206 or total is None:
            raise HubError(
                f"{name}: the server does not support range requests for {file}: run `hf download "
                f"{name.repository} --local-dir FOLDER` and pass the folder"
            )
        return _first_bytes(response, name, file, count), int(total[1]), str(response.url)


def _first_bytes(response: Any, name: HubName, file: str, count: int) -> bytes:
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > count:
            break
    if len(content) != count:
        raise HubError(f"{name}: the server sent a different part of {file} than requested")
    return bytes(content)


def _authorization(url: str) -> dict[str, str]:
    """Return the request headers. The token is only included in requests to the hub, not to other hosts."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers

    is_hub = urlsplit(url).netloc == urlsplit(constants.ENDPOINT).netloc
    return dict(build_hf_headers(token=None if is_hub else False))
