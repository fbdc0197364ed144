"""Parse the name of a diffusers model: a class, a `config.json`, or a pipeline of several models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fakexport.models.hub import HubError, HubName, Repository
from fakexport.models.sources.source_error import SourceError, did_you_mean, first_line
from fakexport.models.sources.transformers.transformers_config import read_settings

CONFIG = "config.json"
INDEX = "model_index.json"
VAE_HALVES = ("vae_encoder", "vae_decoder")

_WITHOUT_WEIGHTS = (
    "Scheduler",
    "Tokenizer",
    "TokenizerFast",
    "Processor",
    "ProcessorFast",
    "FeatureExtractor",
    "Guider",
)


@dataclass(frozen=True)
class DiffusersModel:
    """A subclass of diffusers' `ModelMixin`, its settings (empty for the default config), and notes."""

    model_class: Any
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """Several models that work together.

    Args:
        components: The library and class of each component that may have weights, by name.
        config: Function that returns the `config.json` of a component.
        spec: Function that returns the `hf:` source of a component.
        notes: Sentences for the report.
    """

    components: Mapping[str, tuple[str, str]]
    config: Callable[[str], Path]
    spec: Callable[[str], str]
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the pipeline's programs. An autoencoder has two: encoder and decoder."""
        found = [VAE_HALVES if name == "vae" else (name,) for name in self.components]
        return tuple(name for names in found for name in names)


def described(name: str) -> tuple[DiffusersModel | Pipeline, str | None]:
    """Return the model or pipeline that a name refers to, and the component after the last `/`, if any."""
    if (found := _at(name)) is not None:
        return found, None
    before, _, part = name.rpartition("/")
    if before and part and (found := _at(before)) is not None:
        return found, part
    if not name.endswith(".json") and (hub := HubName.parse(name)) is not None:
        return _of_hub(hub)
    if "/" in name or name.endswith(".json"):
        raise SourceError(f"no such file or folder: {name}")
    raise SourceError(_no_class(name, f"diffusers:{name}"))


def _at(name: str) -> DiffusersModel | Pipeline | None:
    path = Path(name)
    if name.isidentifier() and (found := _class(name)) is not None:
        return DiffusersModel(found, {}, (f"diffusers:{name} is the default configuration of this class",))
    if path.is_file():
        return _pipeline(path) if path.name == INDEX else model_of(read_settings(path, name), name)
    if (path / INDEX).is_file():
        return _pipeline(path / INDEX)
    if path.is_dir() and (path / CONFIG).is_file():
        return model_of(read_settings(path / CONFIG, str(path / CONFIG)), str(path / CONFIG))
    if path.is_dir():
        raise SourceError(f"{name} has neither {INDEX} nor {CONFIG}")
    return None


def model_of(settings: dict[str, Any], place: str) -> DiffusersModel:
    """Return the model that the content of a `config.json` describes."""
    name = settings.get("_class_name")
    if not isinstance(name, str):
        hint = f"write hf:{place}" if "model_type" in settings else "it has no _class_name"
        raise SourceError(f"{place} is not a config of a diffusers model: {hint}")
    model_class = _class(name)
    if model_class is None:
        raise SourceError(_no_class(name, place))
    try:
        _, unused, _ = model_class.extract_init_dict(dict(settings))
    except Exception as error:  # Each class validates its config in its own way.
        raise SourceError(f"{place}: {name} rejects this config: {first_line(error)}") from error
    notes: tuple[str, ...] = ()
    if ignored := sorted(set(unused) - set(model_class._deprecated_kwargs)):
        notes = (f"{name} in this version of diffusers ignores unknown settings: {', '.join(ignored)}",)
    return DiffusersModel(model_class, settings, notes)


def _pipeline(path: Path) -> Pipeline:
    folder = path.parent
    components = _components(path, str(path))
    return Pipeline(components, lambda part: folder / part / CONFIG, lambda part: str(folder / part))


def _components(index: Path, place: str) -> dict[str, tuple[str, str]]:
    components = {
        name: (str(value[0]), str(value[1]))
        for name, value in read_settings(index, place).items()
        if isinstance(value, list)
        and len(value) == 2
        and all(value)
        and name.isidentifier()
        and not str(value[1]).endswith(_WITHOUT_WEIGHTS)
    }
    if not components:
        raise SourceError(f"{place} lists no models")
    return components


def _of_hub(name: HubName) -> tuple[DiffusersModel | Pipeline, str | None]:
    """Return the model or pipeline in a hub repository, and the component in its name, if any."""
    part = name.folder or None
    whole = HubName(name.repository, name.revision)
    try:
        repository = Repository.open(whole)
        index = repository.file(INDEX)
    except HubError as error:
        raise SourceError(str(error)) from error
    notes = (f"{whole} is at commit {repository.commit} on the hub",)

    def place(component: str) -> HubName:
        return HubName(name.repository, repository.commit, component)

    def config(component: str) -> Path:
        try:
            found = Repository.open(place(component)).config
        except HubError as error:
            raise SourceError(str(error)) from error
        if found is None:
            raise SourceError(f"{place(component)} has no {CONFIG}")
        return found

    if index is not None:
        components = _components(index, f"{whole}/{INDEX}")
        return Pipeline(components, config, lambda each: str(place(each)).removeprefix("hf:"), notes), part
    if repository.config is None:
        raise SourceError(f"{whole} has neither {INDEX} nor {CONFIG}")
    found = model_of(read_settings(repository.config, str(whole)), str(whole))
    return replace(found, notes=(*notes, *found.notes)), part


def _class(name: str) -> Any:
    """Return a model class of diffusers by name, or None if it does not exist."""
    import diffusers
    from diffusers.models.modeling_utils import ModelMixin

    found = getattr(diffusers, name, None)
    is_model = isinstance(found, type) and issubclass(found, ModelMixin) and found is not ModelMixin
    return found if is_model else None


def _no_class(name: str, place: str) -> str:
    import diffusers

    if name.endswith("Pipeline"):
        return f"{place}: {name} is a pipeline of several models: pass the folder of one, such as FOLDER/unet"
    known = [
        each for each in dir(diffusers) if each[0].isupper() and not each.endswith(("Pipeline", "Scheduler"))
    ]
    return f"{place}: diffusers has no model class {name!r}{did_you_mean(name, known)}"
