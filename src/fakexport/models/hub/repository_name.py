"""Parse the name of a repository on the hub: `Qwen/Qwen2.5-7B-Instruct@main`."""

from __future__ import annotations

import re
from dataclasses import dataclass

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""Pattern for the name of a repository without a revision: `Qwen/Qwen2.5-7B`."""

_NAME = re.compile(
    rf"(?P<repository>{HUB_ID.pattern})(?P<folder>(?:/[\w-][\w.-]*)*)(?:@(?P<revision>[\w-][\w./-]*))?",
    re.ASCII,
)


@dataclass(frozen=True)
class HubName:
    """A repository, or a folder in it, at a revision.

    Args:
        repository: The name of the repository, such as `Qwen/Qwen2.5-7B`.
        revision: A branch, a tag or a commit. None means the main branch.
        folder: The folder of the model in the repository, such as `text_encoder`; "" for the root.
    """

    repository: str
    revision: str | None = None
    folder: str = ""

    @classmethod
    def parse(cls, text: str) -> HubName | None:
        """Parse a name without the prefix `hf:`; return None for any other text.

        Example:
            >>> HubName.parse("google/gemma-2-2b@refs/pr/1")
            HubName(repository='google/gemma-2-2b', revision='refs/pr/1', folder='')
        """
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        return cls(found["repository"], found["revision"], found["folder"].removeprefix("/"))

    def path(self, file: str) -> str:
        """Return the path of one of the folder's files, relative to the repository."""
        return f"{self.folder}/{file}" if self.folder else file

    def at(self, revision: str | None) -> HubName:
        """Return the same name with a different revision."""
        return HubName(self.repository, revision, self.folder)

    def __str__(self) -> str:
        """Return the name as the text of a source: `hf:Qwen/Qwen2.5-7B@main`."""
        folder = f"/{self.folder}" if self.folder else ""
        return f"hf:{self.repository}{folder}" + (f"@{self.revision}" if self.revision else "")
