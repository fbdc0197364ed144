"""What a user of fakexport may read: the text that the code prints, public docstrings, and the pages."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.contract.source_tree import PACKAGE, ROOT, module_at

_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`+[^`\n]+`+")
_ARGUMENT_NAMES = re.compile(r"^ +\w+(, \w+)*:", re.MULTILINE)
_CPP_STRINGS = re.compile(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+')
_CPP_COMMENT = re.compile(r"//[^\n]*")
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Passage:
    """A piece of text and the line on which it begins; `{}` where an f-string puts a value."""

    line: int
    text: str

    def line_at(self, offset: int) -> int:
        return self.line + self.text.count("\n", 0, offset)


def files_with_text() -> list[Path]:
    sources = [
        path for end in ("*.py", "*.cpp", "*.hpp", "*.md", "repairs.toml") for path in PACKAGE.rglob(end)
    ]
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    return sorted({*sources, *pages})


def passages(path: Path) -> list[Passage]:
    """Return every passage of a file but single words, which are names, such as the values of an option."""
    if path.suffix == ".py":
        found = _python(module_at(path).nodes)
    else:
        found = _READERS[path.suffix](path.read_text(encoding="utf-8"))
    return [passage for passage in found if " " in passage.text.strip()]


def _python(nodes: Sequence[ast.AST]) -> Iterator[Passage]:
    documented = [node for node in nodes if isinstance(node, _Documented)]
    docstrings = {id(node.body[0].value): node for node in documented if ast.get_docstring(node) is not None}
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    inner = {id(part) for node in joined for part in ast.walk(node)}
    for node in nodes:
        match node:
            case ast.JoinedStr(values=parts):
                yield Passage(node.lineno, "".join(_fragment(part) for part in parts))
            case ast.Constant(value=str(text)) if id(node) in docstrings:
                if _is_public(docstrings[id(node)]):
                    yield Passage(node.lineno, _ARGUMENT_NAMES.sub(":", _INLINE_CODE.sub("`...`", text)))
            case ast.Constant(value=str(text)) if id(node) not in inner:
                yield Passage(node.lineno, text)


def _fragment(part: ast.expr) -> str:
    return part.value if isinstance(part, ast.Constant) else "{}"


def _is_public(node: _Documented) -> bool:
    return isinstance(node, ast.Module) or not node.name.startswith("_")


def _cpp(source: str) -> Iterator[Passage]:
    code = _CPP_COMMENT.sub("", source)
    for found in _CPP_STRINGS.finditer(code):
        text = re.sub(r'"\s*"', "", found.group()).strip('" \n')
        yield Passage(code.count("\n", 0, found.start()) + 1, text)


def _markdown(source: str) -> Iterator[Passage]:
    without_blocks = _FENCE.sub(lambda block: "\n" * block.group().count("\n"), source)
    yield Passage(1, _INLINE_CODE.sub("`...`", without_blocks))


def _toml(source: str) -> Iterator[Passage]:
    """Fixes by the message of an error: the messages are of others."""
    for number, line in enumerate(source.splitlines(), 1):
        if not line.startswith("error"):
            yield Passage(number, line.partition(" = ")[2])


_READERS = {".md": _markdown, ".cpp": _cpp, ".hpp": _cpp, ".toml": _toml}
