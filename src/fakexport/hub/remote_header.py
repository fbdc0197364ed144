"""The header of a safetensors file on the hub, by range requests: never a byte of a tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fakexport.files import open_regular
from fakexport.hub.faults import HubError
from fakexport.hub.repository_name import HubName

_LENGTH_BYTES = 8
_MOST_BYTES = 100_000_000
_TIMEOUT_S = 30
_MOST_RETRIES = 2
_CONTENT_RANGE = re.compile(r"bytes \d+-\d+/(\d+)")


@dataclass(frozen=True)
class RemoteHeader:
    """What is read of a safetensors file, in the form in which `weights` reads a file.

    Args:
        path: Name of the file in the repository.
        size: Size of the whole file in bytes.
        content: Its first bytes: the length of the header, and the header.
        is_cached: Whether they were read from a file in the cache, and not transferred.
    """

    path: str
    size: int
    content: bytes
    is_cached: bool = False

    @property
    def transferred(self) -> int:
        """Bytes that were transferred."""
        return 0 if self.is_cached else len(self.content)

    @property
    def header(self) -> bytes:
        """The header alone, JSON; empty where the file is not a safetensors file."""
        return self.content[_LENGTH_BYTES:]

    @classmethod
    def of_file(cls, path: Path) -> RemoteHeader:
        """Return the header of a file that is in the cache.

        Raises:
            OSError: it cannot be read.
        """
        with open_regular(path) as file:
            count = int.from_bytes(file.read_at(0, _LENGTH_BYTES), "little")
            content = file.read_at(0, _LENGTH_BYTES + min(count, _MOST_BYTES))
            return cls(path.name, file.size, content, is_cached=True)

    @classmethod
    def read(cls, url: str, name: HubName, file: str) -> RemoteHeader:
        """Return the header of the file at a URL.

        Raises:
            HubError: the server does not answer range requests.
            Exception: as the HTTP library and `huggingface_hub` raise; see `hub_faults`.
        """
        length, size, final = _range(url, name, file, 0, _LENGTH_BYTES)
        count = int.from_bytes(length, "little")
        if count > min(_MOST_BYTES, size - _LENGTH_BYTES):
            return cls(file, size, length)  # It is refused when it is parsed, with the reason.
        header, _, _ = _range(final, name, file, _LENGTH_BYTES, count) if count else (b"", 0, "")
        return cls(file, size, length + header)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset` on; nothing after the header."""
        return self.content[offset : offset + length]


def _range(url: str, name: HubName, file: str, offset: int, count: int) -> tuple[bytes, int, str]:
    """Return so many bytes of a file, its size, and the URL that they came from."""
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
                f"{name}: the server does not answer requests for a part of {file}: run "
                f"`hf download {name.repository} --local-dir FOLDER` and pass the folder"
            )
        return _first_bytes(response, name, file, count), int(total[1]), str(response.url)


def _first_bytes(response: Any, name: HubName, file: str, count: int) -> bytes:
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > count:
            break
    if len(content) != count:
        raise HubError(f"{name}: the server sent another part of {file} than it was asked for")
    return bytes(content)


def _authorization(url: str) -> dict[str, str]:
    """Return the headers with the token for the hub; without it for the storage that it redirects to."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers

    is_hub = urlsplit(url).netloc == urlsplit(constants.ENDPOINT).netloc
    return dict(build_hf_headers(token=None if is_hub else False))
