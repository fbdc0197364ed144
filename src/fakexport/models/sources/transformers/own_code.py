"""Import the model code of a repository: the classes that the `auto_map` of its `config.json` names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakexport.models.hub import HubError, HubName, LocalFolder, Repository
from fakexport.models.sources.python.python_file import import_from, new_package
from fakexport.models.sources.source_error import SourceError, did_you_mean
from fakexport.models.sources.transformers.transformers_class import AUTO_CLASSES, model_class_for
from fakexport.models.sources.transformers.transformers_config import config_of, known_config_class, own_code

_CONFIG = "AutoConfig"
_OTHER = "--"
_CLASS = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class OwnCode:
    """The code of a repository that describes a model. Nothing is imported before `imported` is called.

    Args:
        settings: The content of `config.json`.
        place: The file or repository, for messages.
        config, model: The classes, as `(folder, "module.Class")`. None for a class of transformers.
    """

    settings: Mapping[str, Any]
    place: str
    class_name: str | None
    config: tuple[Path, str] | None
    model: tuple[Path, str] | None

    @classmethod
    def of(
        cls, settings: Mapping[str, Any], place: Repository | LocalFolder, class_name: str | None
    ) -> OwnCode | None:
        """Return the code that a config refers to, after downloading its files if necessary.

        Return None if the config refers to none, or if the user specified a class that is not part of it.

        Raises:
            SourceError: a file is missing, or cannot be downloaded.
        """
        named = own_code(settings)
        wanted = _model_of(named, settings.get("architectures") or (), class_name)
        if not named or (class_name is not None and wanted is None):
            return None
        try:
            references = named.get(_CONFIG), wanted
            config, model = (None if each is None else _located(each, place) for each in references)
        except HubError as error:
            raise SourceError(str(error)) from error
        return cls(settings, str(place.name), class_name, config, model)

    @property
    def note(self) -> str:
        """A sentence for the report that names the code."""
        names = " and ".join(each[1] for each in (self.config, self.model) if each is not None)
        return f"the repository's own code was run: {names}"

    def imported(self) -> tuple[Any, Any]:
        """Run the files again, and return the config and the model class."""
        packages = {each[0]: new_package(each[0]) for each in (self.config, self.model) if each is not None}

        def found(folder: Path, reference: str) -> Any:
            module, _, name = reference.rpartition(".")
            names = vars(import_from(packages[folder], module, folder))
            if name not in names:
                raise SourceError(f"{self.place}: {module}.py has no {name}{did_you_mean(name, names)}")
            return names[name]

        model_class = None if self.model is None else found(*self.model)
        if self.config is not None:
            config_class = found(*self.config)
        else:
            config_class = known_config_class(self.settings) or getattr(model_class, "config_class", None)
        config = config_of(self.settings, self.place, self.class_name, config_class)
        return config, model_class or model_class_for(config, self.class_name, self.place)[0]


def _model_of(named: Mapping[str, str], architectures: Sequence[Any], class_name: str | None) -> str | None:
    models = {auto: reference for auto, reference in named.items() if auto != _CONFIG}
    for name in architectures if class_name is None else (class_name,):
        found = (each for auto, each in models.items() if name in (auto, each.rpartition(".")[2]))
        if (reference := next(found, None)) is not None:
            return reference
    return None if class_name else next((models[auto] for auto in AUTO_CLASSES if auto in models), None)


def _located(reference: str, place: Repository | LocalFolder) -> tuple[Path, str]:
    """Return the folder and the name of a class, after downloading its file and those that it imports.

    `reference` is `module.Class`, or `org/name--module.Class` for a class in another repository.
    """
    other, _, own = reference.rpartition(_OTHER)
    name = HubName.parse(other) if other else None
    if (other and name is None) or not _CLASS.fullmatch(own):
        raise SourceError(f"{place.name}: auto_map refers to {reference!r}, which is not a class")
    if name is not None:
        place = Repository.open(name)
    first = place.file(f"{own.rpartition('.')[0]}.py")
    if first is None:
        raise SourceError(f"{place.name} has no file for {own}, to which auto_map in its config.json refers")
    waiting, known = [first], {first}
    while waiting:
        imports = (place.file(f"{module}.py") for module in _relative_imports(waiting.pop()))
        new = {path for path in imports if path is not None} - known
        known |= new
        waiting.extend(new)
    return first.parent, own


def _relative_imports(path: Path) -> list[str]:
    from transformers.dynamic_module_utils import get_relative_imports

    return [name for name in get_relative_imports(path) if name.isidentifier()]
