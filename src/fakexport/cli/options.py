"""Arguments and options shared by several commands."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fakexport._libraries import FORMS

if TYPE_CHECKING:
    from fakexport.report import Document


def load_libraries(libraries: Iterable[str] | None) -> None:
    """Load what registers operators, in the given order: Python files, modules and native torch libraries.

    All of them run code, so the user names them, never an archive.

    Raises:
        typer.BadParameter: one is missing, or cannot be loaded with this torch on this machine.
    """
    named = list(libraries or ())
    if not named:
        return
    from fakexport.sources import SourceError, load_operator_library

    for library in named:
        try:
            load_operator_library(library)
        except SourceError as error:
            raise typer.BadParameter(str(error), param_hint="--library") from error


def check_place(path: Path | None) -> Path | None:
    """Return the place from the root; one that no file can be written to is refused before the work."""
    if path is not None:
        if path.is_dir():
            raise typer.BadParameter(f"{path} is a folder: name a file, such as {path / 'report.html'}")
        if not path.parent.is_dir():
            raise typer.BadParameter(f"{path}: there is no folder {path.parent}")
    return None if path is None else path.absolute()


def write_page(document: Document, path: Path) -> None:
    """Write a document as a page."""
    from fakexport.files import new_file
    from fakexport.report import render_page

    with new_file(path) as file:
        file.write(render_page(document).encode())


DEBUG = "--debug"

OutputFormat = Literal["text", "json", "github", "sarif", "markdown"]
TextOrJson = Annotated[
    Literal["text", "json"],
    typer.Option("--format", help=("Output format: text to read, or JSON for scripts.")),
]
Inputs = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE", help="Inputs by name, as a .safetensors file."),
]

Source = Annotated[
    str,
    typer.Argument(metavar="SOURCE", help=f"Model: {', '.join(FORMS[:-1])} or {FORMS[-1]}."),
]
OptionalSource = Annotated[
    str | None,
    typer.Argument(
        metavar="[SOURCE]",
        help=f"The model: {', '.join(FORMS[:-1])} or {FORMS[-1]}. Default: the sources of [tool.fakexport].",
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPOLOGY",
        show_default="cpu",
        help="Devices of one target, such as cpu, H100, 8xH100 or cpu+2xA100-40GB. Repeatable: one "
        "verdict each.",
    ),
]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        "--device-map",
        metavar="MAP",
        help="Placement of the modules: a device, 'balanced', 'fc1=cpu,fc2=cuda:0', or a JSON file.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="Default floating-point dtype while the model is constructed, such as bfloat16.",
    ),
]
ExampleInputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=DTYPE[DIMS]",
        help="Override an example input, such as pixel_values=float32[1,3,224,224]. Repeatable.",
    ),
]
DynamicDims = Annotated[
    list[str] | None,
    typer.Option(
        "--dynamic",
        metavar="NAME.DIM=MIN..MAX",
        help=(
            "Mark a dimension of an input as dynamic, such as input_ids.1=2..4096; or 'auto' for "
            "every dimension that the model lets vary. Repeatable."
        ),
    ),
]
Strict = Annotated[
    bool | None,
    typer.Option("--strict/--no-strict", help="Trace with TorchDynamo instead of running the Python code."),
]
UseCache = Annotated[
    bool | None,
    typer.Option(
        "--use-cache/--no-use-cache", help="Let a language model return its KV cache (it takes none)."
    ),
]
Assume = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="FILE:LINE=ANSWER",
        help="Answer of the condition on data at a line, True or False, or the integer that the line reads, "
        "as FE201, FE203 and FE301 name them: the program goes that way, and raises an error for other "
        "inputs. Repeatable.",
    ),
]
Workload = Annotated[
    Literal["forward", "prefill", "decode"],
    typer.Option(
        "--workload",
        help="Call of an hf: model: forward; or a call of generation, whose cache is inputs and outputs of "
        "the program: prefill reads a prompt, decode one token and the cache.",
    ),
]
Component = Annotated[
    str | None,
    typer.Option(
        "--component",
        metavar="NAME",
        help="A part of an hf: model: vision, audio, language, encoder, decoder, connector, or a module by "
        "the model's own name or its class. A model of a diffusers: pipeline: unet, transformer, "
        "vae_decoder.",
    ),
]
Adapter = Annotated[
    str | None,
    typer.Option(
        "--adapter",
        metavar="[NAME=]DIR",
        help="A LoRA adapter of peft on an hf: model: the folder of its adapter_config.json.",
    ),
]
AdapterMode = Annotated[
    Literal["apart", "merged", "inputs"],
    typer.Option(
        "--adapter-mode",
        help="Matrices of the adapter: apart from the base model's weights; merged into them when these are "
        "bound; or inputs of the program, so that adapters are swapped without a new export.",
    ),
]
Parallel = Annotated[
    str | None,
    typer.Option(
        "--parallel",
        metavar="tp=N[,ep=N][,plan=FILE]",
        help="Shard an hf: model over N devices by its own tensor parallel plan, with ep=N the experts too; "
        "FILE changes the plan, or is the plan of a model that has none.",
    ),
]
BoundAdapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="[NAME=]DIR",
        help="A LoRA adapter of peft to bind with the checkpoint of its base model, merged where the program "
        "has none; or merged, for a checkpoint that has it merged. Repeatable with names.",
    ),
]
RunAdapter = Annotated[
    str | None,
    typer.Option(
        "--adapter",
        metavar="DIR",
        help="A LoRA adapter of peft: bound with the checkpoint, or as inputs of the program.",
    ),
]
CacheLength = Annotated[
    int | None,
    typer.Option(
        "--cache-length",
        metavar="N",
        min=1,
        help="With a workload of generation: a static cache of N tokens, instead of one that grows.",
    ),
]
CacheForm = Annotated[
    Literal["inputs", "buffers"],
    typer.Option(
        "--cache-form",
        help="With --cache-length: the cache is inputs and outputs, copied in each call; or buffers "
        "of the program, which it writes into. Those are what ExecuTorch and AOTInductor keep.",
    ),
]
HtmlPage = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        callback=check_place,
        help="Also write the report as one HTML file, which loads nothing.",
    ),
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress on stderr.")]
Libraries = Annotated[
    list[str] | None,
    typer.Option(
        "--library",
        metavar="LIBRARY",
        help="Load operators first: a native library for torch, a .py file, or a module. Repeatable.",
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        DEBUG, help="Show tracebacks, and the warnings and logs of torch, transformers and fakexport."
    ),
]
Archive = Annotated[
    str,
    typer.Argument(metavar="ARCHIVE", help="Archive (.pt2) written by fakexport or torch.export.save."),
]
Method = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME", help="Program to use from a bundle."),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Open files with pickled weights, native code or operators that reach outside the "
        "process. Such a file can run any code: pass --trust only for files you built.",
    ),
]
Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="Checkpoint: a .safetensors, .pt or .bin file, an index, or a folder that contains one.",
    ),
]
OptionalCheckpoint = Annotated[
    str | None,
    typer.Argument(metavar="[CHECKPOINT]", help="Checkpoint to bind, if ARCHIVE has no weights."),
]
BoundDevices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="FROM=TO",
        help="Override the program's devices: cpu for all, or cuda:0=cpu,cuda:1=cpu.",
    ),
]
