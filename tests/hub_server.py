"""A Hugging Face hub on this machine: the part of its protocol that reading a repository uses.

It serves no byte of a tensor: a request for one is answered with an error, and fails the test.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "fedcba9876543210fedcba9876543210fedcba98"
TOKEN = "hf_a_token"
ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1}

Entries = Mapping[str, tuple[str, tuple[int, ...]]]
"""Tensors by name: dtype of the format, and shape."""


@dataclass(frozen=True)
class Weights:
    """A safetensors file, of which only the header exists."""

    header: bytes
    size: int

    @classmethod
    def of(cls, entries: Entries) -> Weights:
        end, fields = 0, {"__metadata__": {"format": "pt"}}
        for name, (dtype, shape) in entries.items():
            begin, end = end, end + math.prod(shape) * ITEM_BYTES.get(dtype, 1)
            fields[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(fields).encode()
        text += b" " * (-len(text) % 8)
        return cls(len(text).to_bytes(8, "little") + text, 8 + len(text) + end)


def sharded(entries: Entries, shards: int, *, total_size: int | None = None) -> dict[str, bytes | Weights]:
    """The files of a checkpoint in so many shards, in the order of its entries."""
    names, files, places = list(entries), {}, {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        own = names[len(names) * number // shards : len(names) * (number + 1) // shards]
        files[file] = Weights.of({name: entries[name] for name in own})
        places.update(dict.fromkeys(own, file))
    size = sum(file.size for file in files.values()) if total_size is None else total_size
    index = {"metadata": {"total_size": size}, "weight_map": places}
    return {"model.safetensors.index.json": json.dumps(index, indent=2).encode(), **files}


@dataclass
class Repo:
    """What a repository holds.

    Args:
        files: By path.
        revisions: Branches and tags, and the commit of each.
        is_gated: Whether it needs a token.
        is_whole: Whether a request for a part of a file gets all of it.
    """

    files: dict[str, bytes | Weights]
    revisions: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    is_gated: bool = False
    is_whole: bool = False


@dataclass
class Hub:
    """The repositories by name, and what was asked for."""

    repos: dict[str, Repo] = field(default_factory=dict)
    endpoint: str = ""
    storage: str = ""
    sent: int = 0
    requests: list[str] = field(default_factory=list)
    tensor_requests: list[str] = field(default_factory=list)
    leaked_tokens: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, config: object = None, /, **options: object) -> Repo:
        """Adds a repository with this `config.json` and further files by path."""
        files = dict(options.pop("files", {}))  # type: ignore[call-overload]
        if config is not None:
            files["config.json"] = json.dumps(config).encode()
        self.repos[name] = Repo(files, **options)  # type: ignore[arg-type]
        return self.repos[name]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    is_storage = False

    def do_HEAD(self) -> None:
        self._answer(is_head=True)

    def do_GET(self) -> None:
        self._answer(is_head=False)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, *, is_head: bool) -> None:
        path = self.path.partition("?")[0]
        with self.hub.lock:
            self.hub.requests.append(f"{self.command} {path}")
        if self.is_storage and "Authorization" in self.headers:
            self.hub.leaked_tokens.append(path)
        if listed := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?(.*)", path):
            self._list(*map(unquote, listed.groups()))
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(*map(unquote, found.groups()), is_head=is_head)
        else:
            self._error(404, "RepoNotFound")

    def _repo(self, name: str, revision: str) -> tuple[Repo, str] | None:
        repo = self.hub.repos.get(name)
        if repo is None:
            self._error(401, "RepoNotFound")
        elif repo.is_gated and self.headers.get("Authorization") != f"Bearer {TOKEN}" and not self.is_storage:
            self._error(401 if "Authorization" not in self.headers else 403, "GatedRepo")
        elif revision not in {*repo.revisions, *repo.revisions.values()}:
            self._error(404, "RevisionNotFound")
        else:
            return repo, repo.revisions.get(revision, revision)
        return None

    def _list(self, name: str, revision: str, folder: str) -> None:
        if (found := self._repo(name, revision)) is None:
            return
        prefix = f"{folder}/" if folder else ""
        paths = [path for path in found[0].files if path.startswith(prefix)]
        listed = [{"type": "file", "path": path} for path in paths if "/" not in path.removeprefix(prefix)]
        self._send(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, file: str, *, is_head: bool) -> None:
        if (found := self._repo(name, revision)) is None:
            return
        repo, commit = found
        content = repo.files.get(file)
        headers = {"X-Repo-Commit": commit}
        if content is None:
            self._error(404, "EntryNotFound", headers)
            return
        size = content.size if isinstance(content, Weights) else len(content)
        text = content.header if isinstance(content, Weights) else content
        tag = hashlib.sha256(text).hexdigest()
        if isinstance(content, Weights) and not self.is_storage:
            place = f"{self.hub.storage}{self.path}"
            linked = {"X-Linked-Size": str(size), "X-Linked-Etag": f'"{tag}"', "Location": place}
            self._send(302, b"", {**headers, **linked})
        elif is_head:
            self._send(200, b"", {**headers, "ETag": f'"{tag}"', "Content-Length": str(size)})
        else:
            self._content(repo, content, text, size, headers | {"ETag": f'"{tag}"'})

    def _content(
        self, repo: Repo, content: bytes | Weights, text: bytes, size: int, headers: dict[str, str]
    ) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if isinstance(content, Weights) and repo.is_whole:
            self._send(200, b"", {**headers, "Content-Length": str(size)})
            self.close_connection = True
            return
        if isinstance(content, Weights) and (asked is None or int(asked[2]) >= len(text)):
            self.hub.tensor_requests.append(f"{self.path} {self.headers.get('Range')}")
            self._error(500, "TensorData")
            return
        if asked is None:
            self._send(200, text, headers)
            return
        begin, end = int(asked[1]), min(int(asked[2]), size - 1)
        self._send(206, text[begin : end + 1], headers | {"Content-Range": f"bytes {begin}-{end}/{size}"})

    def _error(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(status, b"", {**(headers or {}), "X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        lines = {"Content-Length": str(len(body)), **headers}
        self.send_response(status)
        for name, value in lines.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        with self.hub.lock:
            self.hub.sent += len(body) + sum(len(name) + len(value) + 4 for name, value in lines.items())


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serves a hub, and on another port the storage that it sends readers of large files to."""
    servers = []
    for is_storage in (False, True):
        handler = type("Handler", (_Handler,), {"hub": hub, "is_storage": is_storage})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        servers.append(server)
    hub.endpoint, hub.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
    assert not hub.tensor_requests
    assert not hub.leaked_tokens


@contextmanager
def local_hub(cache: Path) -> Iterator[Hub]:
    """A hub that `huggingface_hub` uses in this process, with an empty cache; it reads its settings once."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http, close_session

    with serving(Hub()) as hub, pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.endpoint)
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: None))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            patch.delenv(name, raising=False)
        patch.setenv("NO_PROXY", "127.0.0.1")
        close_session()
        try:
            yield hub
        finally:
            close_session()
