"""Arguments and options shared by several commands.

A command can take a group of options as one parameter: a dataclass whose fields are the options.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from fakexport.models import FORMS, parse_dynamic

if TYPE_CHECKING:
    from fakexport.report import Document


def load_libraries(libraries: Iterable[str] | None) -> None:
    """Load operator libraries in the given order: Python files, modules and native torch libraries.

    Libraries run code. Therefore, only the user can name them; an archive cannot.

    Raises:
        typer.BadParameter: a library is missing, or cannot be loaded with this torch on this machine.
    """
    named = list(libraries or ())
    if not named:
        return
    from fakexport.archive import save  # noqa: F401 - Binds `json.dumps` before a library can replace it.
    from fakexport.models.sources import SourceError, load_operator_library

    for library in named:
        try:
            load_operator_library(library)
        except SourceError as error:
            raise typer.BadParameter(str(error), param_hint="--library") from error


def check_place(path: Path | None) -> Path | None:
    """Return the absolute path; raise typer.BadParameter early if no file can be written there."""
    if path is not None:
        if path.is_dir():
            raise typer.BadParameter(f"{path} is a folder: name a file, such as {path / 'report.html'}")
        if not path.parent.is_dir():
            raise typer.BadParameter(f"{path}: there is no folder {path.parent}")
    return None if path is None else path.absolute()


def is_archive_name(subject: str) -> bool:
    """Return whether an argument for an archive or a model names an archive."""
    return subject.endswith(".pt2") or Path(subject).is_file()


def check_chart(path: Path, option: str, *suffixes: str) -> None:
    """Raise an error early if a chart's suffix is unsupported or needs a missing package."""
    named = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
    if path.suffix not in suffixes:
        what = option.removeprefix("--")
        raise typer.BadParameter(f"{path}: a {what} must be a {named} file", param_hint=option)
    if path.suffix in (".svg", ".png"):
        importlib.import_module("matplotlib")


def write_file(path: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    from fakexport.files import new_file

    with new_file(path) as file:
        file.write(content)


def write_page(document: Document, path: Path) -> None:
    """Write a document as an HTML page."""
    from fakexport.report import render_page

    write_file(path, render_page(document).encode())


def grouped_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a typer command in which the fields of each dataclass parameter are separate options."""
    signature = inspect.signature(command, eval_str=True)
    groups = {
        name: each.annotation
        for name, each in signature.parameters.items()
        if isinstance(each.annotation, type) and is_dataclass(each.annotation)
    }

    @functools.wraps(command)
    def flat(**given: Any) -> None:
        made = {
            name: group(**{each.name: _given(given.pop(each.name)) for each in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    def options() -> Iterator[inspect.Parameter]:
        for parameter in signature.parameters.values():
            if (group := groups.get(parameter.name)) is None:
                yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                continue
            annotations = get_type_hints(group, include_extras=True)
            own = inspect.get_annotations(group)  # Own fields come before inherited ones.
            for each in sorted(fields(group), key=lambda each: each.name not in own):
                yield inspect.Parameter(
                    each.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=each.default,
                    annotation=annotations[each.name],
                )

    vars(flat)["__signature__"] = signature.replace(parameters=list(options()))
    return flat


def _given(value: Any) -> Any:
    """Return None for [], the value that typer passes if a repeatable option is not given."""
    return None if value == [] else value


DEBUG = "--debug"

OutputFormat = Literal["text", "json", "github", "sarif", "markdown"]
TextOrJson = Annotated[
    Literal["text", "json"], typer.Option("--format", help="Print text, or JSON for scripts.")
]
Inputs = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Read the inputs by name from a .safetensors file.")
]

Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help=f"Model: {', '.join(FORMS[:-1])} or {FORMS[-1]}.")
]
OptionalSource = Annotated[
    str | None,
    typer.Argument(
        metavar="SOURCE",
        help=f"The model: {', '.join(FORMS[:-1])} or {FORMS[-1]}. Default: the sources of [tool.fakexport].",
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPOLOGY",
        show_default="cpu",
        help="Devices to export for, such as `cpu`, `H100`, `8xH100` or `cpu+2xA100-40GB`. "
        "Repeatable: each target is checked separately.",
    ),
]
BuildDevices = Annotated[
    str,
    typer.Option(
        "--target", metavar="TOPOLOGY", help="Devices to emulate while a model is built, such as `8xH100`."
    ),
]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        metavar="MAP",
        help="Place the modules: one device for all, `balanced`, `fc1=cpu,fc2=cuda:0`, or a JSON file.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE", help="Build the model with this default floating-point dtype, such as `bfloat16`."
    ),
]
ExampleInputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=DTYPE[DIMS]",
        help="Replace an example input, such as `pixel_values=float32[1,3,224,224]`. Repeatable.",
    ),
]


def _readable_dims(texts: list[str] | None) -> list[str] | None:
    """Return the values of `--dynamic`; raise before the imports of a command if one cannot be read."""
    parse_dynamic(texts or [])
    return texts


DynamicDims = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME.DIM=MIN..MAX",
        callback=_readable_dims,
        help="Make a dimension of an input dynamic, such as `input_ids.1=2..4096`; or `auto` for "
        "every dimension that the model allows. Dimensions that always have the same size get one name: "
        "`input_ids.1=seq=2..4096`, `attention_mask.1=seq`. Several ranges, such as `'input_ids.0=1|2..32'`, "
        "make a program for each. Repeatable.",
    ),
]
Strict = Annotated[
    bool | None,
    typer.Option(
        "--strict/--no-strict",
        help="Trace with TorchDynamo (strict mode) instead of running the Python code.",
    ),
]
UseCache = Annotated[
    bool | None,
    typer.Option(
        "--use-cache/--no-use-cache",
        help="Let a language model return its KV cache. The cache is not an input.",
    ),
]
TrustRemoteCode = Annotated[
    bool | None,
    typer.Option(
        "--trust-remote-code/--no-trust-remote-code",
        help="Run the Python files that `auto_map` lists in the `config.json` of an `hf:` repository or "
        "folder. Without it, the class of transformers for this model type is used, if there is one.",
    ),
]
Assume = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE:LINE=VALUE",
        help="Assume the value that a data-dependent line reads: `True` or `False`, or an integer. "
        "FE201, FE203 and FE301 print the value to use. The exported program raises an error "
        "for inputs that contradict the assumption. Repeatable.",
    ),
]
Workload = Annotated[
    Literal["forward", "prefill", "decode", "chunk"],
    typer.Option(
        help="Export this workload of an `hf:` model: `forward`; `prefill`, which reads a prompt and returns "
        "the KV cache; `decode`, which reads one token and the cache and returns the new cache; or `chunk`, "
        "which reads one or more tokens and a cache that may be empty."
    ),
]
Component = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Export one component of an `hf:` model: `vision`, `video`, `audio`, `text`, `language`, "
        "`encoder`, `decoder`, `connector`, or the path or class name of a module. For a `diffusers:` "
        "pipeline: `unet`, `transformer`, `vae_encoder`, `vae_decoder` or `text_encoder`.",
    ),
]
Adapter = Annotated[
    str | None,
    typer.Option(
        metavar="[NAME=]DIR",
        help="Add a PEFT LoRA adapter to an `hf:` model: DIR contains its `adapter_config.json`. "
        "`NAME=` distinguishes several adapters in one bundle.",
    ),
]
AdapterMode = Annotated[
    Literal["separate", "merged", "inputs"],
    typer.Option(
        help="Export the adapter's matrices as separate weights, merge them into the base weights "
        "when `fakexport bind` runs, or make them inputs of the program."
    ),
]
Parallel = Annotated[
    str | None,
    typer.Option(
        metavar="tp=N[,ep=N][,pp=N][,at=MODULE,...][,plan=FILE]",
        help="`tp=N` shards an `hf:` model over N ranks by its own tensor-parallel plan. `ep=N` also "
        "distributes the experts. FILE edits the plan, or supplies one for a model without a plan. `pp=N` "
        "cuts the program of any model into N pipeline stages, which begin at the MODULEs. Default: at those "
        "blocks that make the slowest stage fastest.",
    ),
]
BoundAdapters = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]DIR",
        help="Bind a PEFT LoRA adapter together with the checkpoint of its base model. Pass `merged` if the "
        "checkpoint already contains the adapter. Repeatable, with a different `NAME=` each time.",
    ),
]
RunAdapter = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Apply a PEFT LoRA adapter: bind it together with the checkpoint, or pass it to a program "
        "that was exported with `--adapter-mode inputs`.",
    ),
]
CacheLength = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="With `--workload prefill` or `decode`: use a static cache of N tokens instead of one that "
        "grows.",
    ),
]
CacheForm = Annotated[
    Literal["inputs", "buffers"],
    typer.Option(
        help="With `--max-cache-len`: pass the cache as inputs and outputs, which are copied in every call, "
        "or store it in buffers that the program updates in place."
    ),
]
HtmlPage = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", callback=check_place, help="Also write the report as one self-contained HTML file."
    ),
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress on a terminal.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.1,
        help="Stop after this time with exit code 124, and print the step and the module that was traced.",
    ),
]
Libraries = Annotated[
    list[str] | None,
    typer.Option(
        "--library",
        metavar="LIBRARY",
        help="Load custom operators first, from a native library (.so), a .py file or a module. Repeatable.",
    ),
]
Debug = Annotated[
    bool, typer.Option(DEBUG, help="Show tracebacks, and the warnings and logs of torch and transformers.")
]
Archive = Annotated[
    str, typer.Argument(metavar="ARCHIVE", help="Archive (.pt2) written by fakexport or `torch.export.save`.")
]
OutputArchive = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Write the archive (.pt2) to this file.")
]
Method = Annotated[str | None, typer.Option(metavar="NAME", help="Use this program of a bundle.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Open a file even if it can run any code: pickled weights or constants, native code, or "
        "operators that reach outside the process. Use it only for files you built.",
    ),
]
Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="Checkpoint: a .safetensors, .pt, .pth or .bin file, an index of shards, or a folder "
        "that contains one.",
    ),
]
OptionalCheckpoint = Annotated[
    str | None, typer.Argument(metavar="CHECKPOINT", help="Checkpoint to bind, if ARCHIVE has no weights.")
]
BoundDevices = Annotated[
    str | None,
    typer.Option(
        metavar="FROM=TO", help="Replace the program's devices: `cpu` for all, or `cuda:0=cpu,cuda:1=cpu`."
    ),
]
