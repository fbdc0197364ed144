"""Generate the descriptions of JSON documents, and the JSON Schemas, from the classes.

Run `python tools/json_documents.py`. It writes docs/json.md, the manifest in docs/archive_format.md, and the
schemas in src/fakexport/report/. The types come from the fields and properties of the classes, and the
descriptions from their docstrings. In docs/json.md, the text of a level 2 section is written by hand, up to
its first level 3 section. The level 3 sections are generated: they describe the objects of the document that
no earlier document contains.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fakexport.archive import ArchiveDescription, ArchiveDifference, Manifest
from fakexport.archive.manifest_json import FORMAT
from fakexport.archive.weights import WeightsReport
from fakexport.checking.sweep.results import SweepReport
from fakexport.cli.project_file import CheckOptions
from fakexport.files.documents import stored_fields
from fakexport.report import BenchReport, Comparison, PlanReport, ProjectReport, Report
from fakexport.report.as_json import SCHEMAS, Member, members

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "json.md"
FORMAT_PAGE = _ROOT / "docs" / "archive_format.md"
_FOLDER = _ROOT / "src" / "fakexport" / "report"
SCHEMA = _FOLDER / "documents.schema.json"
MANIFEST_SCHEMA = _FOLDER / "manifest.schema.json"
PROJECT_SCHEMA = _FOLDER / "project.schema.json"
DOCUMENTS = (
    *(Report, ProjectReport, PlanReport, WeightsReport, ArchiveDescription, ArchiveDifference),
    *(BenchReport, Comparison, SweepReport),
)
"""The documents, in the order of docs/json.md."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_MANIFEST_HEADING = "\n## The objects of the manifest\n"
_SECTION = re.compile(r"(?<=\n)## .*?(?=\n## |\Z)", re.DOTALL)
_ARGUMENT = re.compile(r"^    (\w[\w, ]*): (.+(?:\n {6,}.+)*)", re.MULTILINE)
_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}
_ABOUT = {
    "Measured": "Measurements, which differ from run to run.",
    "BenchMeasured": "Measurements, which differ from run to run and from machine to machine.",
    "ModeMeasured": "The figures of one mode.",
}
"""Descriptions of views, for classes with several views."""
_JSON_WORDS = {"None": "null", "True": "true", "False": "false"}


@dataclass(frozen=True)
class Part:
    """A member of an object.

    Args:
        key: The key; "" if all members of a different object are included here.
        schema: JSON Schema of the value.
        meaning: Description from the docstring.
        default: The value, as JSON text, if the key is missing; None if the key is required.
    """

    key: str
    schema: dict[str, Any]
    meaning: str
    default: str | None = None


class Shapes:
    """The objects in some documents, by name, in the order of their first use."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Part]] = {}
        self.about: dict[str, str] = {}

    def add(self, kind: type, view: str) -> None:
        """Add the object of a class, and the objects that it contains."""
        if view in self.parts:
            return
        own = self.parts[view] = []
        summary = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
        self.about[view] = _ABOUT.get(view) or _prose(summary)
        own.extend(self._head(view))
        for member in self._members(kind, view):
            meaning, optional, hint = _ABOUT.get(member.view or "", ""), False, kind
            for name in member.path:
                meaning, hint = _meaning(hint, name), _hint(hint, name)
                if name != member.path[-1] and NoneType in get_args(hint):
                    optional, hint = True, get_args(hint)[0]
            schema = self._schema(hint | None if optional else hint, member.view)
            own.append(Part(member.key, schema, meaning, self._default(kind, member.key)))

    def _head(self, view: str) -> Iterator[Part]:
        """Yield the member that names the format of a document."""
        if view in SCHEMAS:
            yield Part("schema", {"const": SCHEMAS[view]}, "Name and version of this format.")

    def _members(self, kind: type, view: str) -> Iterable[Member]:
        return members(kind, view)

    def _default(self, kind: type, key: str) -> str | None:
        return None

    def _schema(self, hint: Any, view: str | None) -> dict[str, Any]:
        """Return the JSON Schema of a type, and add the objects that it refers to."""
        arguments = get_args(hint)
        match get_origin(hint) or hint:
            case origin if origin is Annotated:
                schema = self._schema(arguments[0], view)
                is_word = isinstance(arguments[1], str)  # Otherwise, it is a validator of the value.
                return {"anyOf": [schema, {"const": arguments[1]}]} if is_word else schema
            case origin if origin is Literal:
                return {"enum": list(arguments)}
            case origin if origin in (Union, UnionType):
                return {"anyOf": [self._schema(each, view) for each in arguments]}
            case origin if origin is NoneType:
                return {"type": "null"}
            case origin if origin in _SCALARS:
                return {"type": _SCALARS[origin]}
            case origin if issubclass(origin, (tuple, list)) and ... not in arguments[1:]:
                each = [self._schema(argument, view) for argument in arguments]
                return {"type": "array", "prefixItems": each, "items": False, "minItems": len(each)}
            case origin if issubclass(origin, (tuple, list)):
                return {"type": "array", "items": self._schema(arguments[0], view)}
            case origin if issubclass(origin, Mapping):
                item = self._schema(arguments[1] if len(arguments) == 2 else int, view)
                return {"type": "object", "additionalProperties": item}
            case kind:
                name = view or kind.__name__
                self.add(kind, name)
                return {"$ref": f"#/$defs/{name}"}
        raise AssertionError(hint)

    def properties(self, name: str) -> dict[str, Part]:
        """Return the members of an object, by key."""
        found: dict[str, Part] = {}
        for part in self.parts[name]:
            found |= {part.key: part} if part.key else self.properties(_referred(part.schema))
        return found

    def schema(self, name: str) -> str:
        """Return the JSON Schema of an object, with a line per key."""
        properties = self.properties(name)
        required = [key for key, part in properties.items() if part.default is None]
        head = {"type": "object", "additionalProperties": False, "required": required}
        rows = ",\n".join(
            f"      {json.dumps(key)}: {json.dumps(of.schema)}" for key, of in properties.items()
        )
        return f'{json.dumps(head)[:-1]}, "properties": {{\n{rows}\n    }}}}'

    def section(self, name: str) -> str:
        """Return the section of docs/json.md about an object."""
        rows = ["| field | type | meaning |\n|---|---|---|"]
        for part in self.parts[name]:
            if part.key:
                default = "" if part.default is None else f" Default: `{part.default}`."
                rows.append(f"| `{part.key}` | {_type_text(part.schema)} | {part.meaning}{default} |")
            else:
                rows.append(f"| ... | | All fields of `{_referred(part.schema)}`. |")
        return "\n\n".join([f"### `{name}`", self.about[name], "\n".join(rows)])


class StoredShapes(Shapes):
    """The objects of an archive's manifest. Fields that have their default value are omitted."""

    def _head(self, view: str) -> Iterator[Part]:
        if view == Manifest.__name__:
            yield Part("format", {"const": FORMAT}, "Name and version of this format.")

    def _members(self, kind: type, view: str) -> Iterable[Member]:
        return (Member(each.name, (each.name,)) for each in fields(kind) if each.compare)

    def _default(self, kind: type, key: str) -> str | None:
        found = next(each for each in fields(kind) if each.name == key)
        if found.default_factory is not MISSING:
            return json.dumps(found.default_factory())
        return None if found.default is MISSING else json.dumps(found.default, default=stored_fields)


def _referred(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


@cache
def _namespace(module: str) -> dict[str, Any]:
    """Return the names in a module, including those that it imports only for type checkers."""
    found = sys.modules[module]
    names = dict(vars(found))
    for block in ast.parse(inspect.getsource(found)).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for each in block.body:
                if isinstance(each, ast.ImportFrom):
                    origin = importlib.import_module(
                        "." * each.level + str(each.module), names["__package__"]
                    )
                    names |= {alias.name: getattr(origin, alias.name) for alias in each.names}
    return names


def _hint(owner: type, name: str) -> Any:
    """Return the type of a field or of a property."""
    for kind in owner.__mro__:
        if isinstance(found := vars(kind).get(name), property):
            return eval(found.fget.__annotations__["return"], _namespace(kind.__module__))
        if name in vars(kind).get("__annotations__", ()):
            return eval(kind.__annotations__[name], _namespace(kind.__module__))
    raise AttributeError(f"{owner.__name__}.{name}")


def _meaning(owner: type, name: str) -> str:
    """Return the description of a field from the docstring of its class, or the docstring of a property."""
    for kind in owner.__mro__:
        if isinstance(found := vars(kind).get(name), property):
            return _prose(inspect.cleandoc(found.__doc__ or "").partition("\n\n")[0])
        _, _, arguments = inspect.cleandoc(kind.__doc__ or "").partition("\nArgs:\n")
        for names, text in _ARGUMENT.findall(arguments):
            if name in names.split(", "):
                return _prose(text)
    raise AttributeError(f"the docstring of {owner.__name__} says nothing of {name}")


def _prose(text: str) -> str:
    """Return text from a docstring on one line, with JSON's names, such as `null` instead of `None`."""
    line = re.sub(r"\b(None|True|False)\b", lambda word: _JSON_WORDS[word[0]], " ".join(text.split()))
    return re.sub(r"^[a-z]|(?<=\. )[a-z]", lambda letter: letter[0].upper(), line).replace("|", "\\|")


def _type_text(schema: dict[str, Any]) -> str:
    """Return a type as people read it: `list of string or null`."""
    *first, last = _choices(schema)
    return f"{', '.join(first)} or {last}" if first else last


def _choices(schema: dict[str, Any]) -> Iterator[str]:
    match schema:
        case {"const": value}:
            yield f'`"{value}"`'
        case {"enum": values}:
            yield from (f'`"{value}"`' for value in values)
        case {"$ref": _}:
            yield f"`{_referred(schema)}`"
        case {"anyOf": several}:
            yield from (text for each in several for text in _choices(each))
        case {"prefixItems": several}:
            yield f"[{', '.join(_type_text(each) for each in several)}]"
        case {"items": item}:
            yield f"list of {_type_text(item)}"
        case {"additionalProperties": item}:
            yield f"object of {_type_text(item)}"
        case {"type": kind}:
            yield kind


def page(text: str) -> str:
    """Return docs/json.md with newly generated level 3 sections."""
    shapes = Shapes()
    documents = iter(DOCUMENTS)

    def written(section: re.Match[str]) -> str:
        before = set(shapes.parts)
        kind = next(documents)
        shapes.add(kind, kind.__name__)
        by_hand = section[0].partition("\n### ")[0].rstrip("\n")
        objects = (shapes.section(name) for name in shapes.parts if name not in before)
        return "\n\n".join([by_hand, *objects]) + "\n"

    return _SECTION.sub(written, text)


def format_page(text: str) -> str:
    """Return docs/archive_format.md with a newly generated description of the manifest."""
    shapes = StoredShapes()
    shapes.add(Manifest, Manifest.__name__)
    by_hand, heading, _ = text.partition(_MANIFEST_HEADING)
    return by_hand + heading + "".join(f"\n{shapes.section(name)}\n" for name in shapes.parts)


def schemas() -> dict[Path, str]:
    """Return the text of each JSON Schema, by path."""
    printed, stored = Shapes(), StoredShapes()
    for kind in DOCUMENTS:
        printed.add(kind, kind.__name__)
    stored.add(Manifest, Manifest.__name__)
    return {
        SCHEMA: _schema_text("What fakexport prints with --format json", DOCUMENTS, printed),
        MANIFEST_SCHEMA: _schema_text("The manifest of a .pt2 archive of fakexport", (Manifest,), stored),
        PROJECT_SCHEMA: project_schema(),
    }


def _id(path: Path) -> str:
    """Return the `$id` of a schema. It names no host, and is absolute, because taplo rejects other ones."""
    return f"urn:fakexport:schema:{path.name.partition('.')[0]}"


def _schema_text(title: str, documents: Iterable[type], shapes: Shapes) -> str:
    """Return a JSON Schema of several documents, with a line per key."""
    objects = ",\n".join(f'    "{name}": {shapes.schema(name)}' for name in shapes.parts)
    path = {"Manifest": MANIFEST_SCHEMA}.get(next(iter(shapes.parts)), SCHEMA)
    return f"""{{
  "$schema": "{_DIALECT}",
  "$id": "{_id(path)}",
  "title": "{title}",
  "anyOf": {json.dumps([{"$ref": f"#/$defs/{kind.__name__}"} for kind in documents])},
  "$defs": {{
{objects}
  }}
}}
"""


def project_schema() -> str:
    """Return a JSON Schema of a `pyproject.toml`, which describes `[tool.fakexport]` only."""
    texts = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    types: dict[Any, Any] = {
        str | None: {"type": "string"},
        bool | None: {"type": "boolean"},
        list[str] | None: texts,
    }
    own = {}
    for name, hint in get_type_hints(CheckOptions, include_extras=True).items():
        kind, option = get_args(hint)
        own[name.replace("_", "-")] = {"description": " ".join(str(option.help).split()), **types[kind]}
    source = {"type": "string", "pattern": "^[^-]", "description": "A model, such as `model.py:factory`."}
    table = {"type": "object", "additionalProperties": False, "required": ["source"]}
    sources = {
        "description": "The models to check, each as text or as a table with its own options.",
        "type": "array",
        "items": {"anyOf": [source, {**table, "properties": {"source": source, **own}}]},
    }
    profiles = {"type": "string", "description": "A file of device profiles."}
    ours = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"sources": sources, **own, "profiles": profiles},
    }
    tool = {"type": "object", "properties": {"fakexport": {"$ref": "#/$defs/fakexport"}}}
    head = {"$schema": _DIALECT, "$id": _id(PROJECT_SCHEMA), "title": "[tool.fakexport] in pyproject.toml"}
    whole = {**head, "type": "object", "properties": {"tool": tool}, "$defs": {"fakexport": ours}}
    return json.dumps(whole, indent=2) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    FORMAT_PAGE.write_text(format_page(FORMAT_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for path, text in schemas().items():
        path.write_text(text, encoding="utf-8")
