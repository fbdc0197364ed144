"""The pages that show commands: what each takes for granted, and what of it no test runs, with the reason."""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.command_line import fakexport

__all__ = ["AGENT_MODEL", "LEFT_OUT", "PAGES", "ROOT", "Command", "File", "Page", "commands", "steps"]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
_BLOCK = re.compile(
    r"^```(?P<kind>console|diff|python|toml|yaml)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_COMMAND = re.compile(r"^\$ (?P<command>(?:\\\n|.)*)\n(?P<printed>(?:(?!\$ ).*\n)*)", re.MULTILINE)
_FILE = re.compile(r"# (?P<name>\S+\.(?:py|toml|yml))\n")
_EDITED = re.compile(r"--- (?P<name>\S+)\n\+\+\+ (?P=name)\n@@\n")


@dataclass(frozen=True)
class Command:
    """A command of a page, and the lines that it is said to print."""

    text: str
    printed: list[str]


@dataclass(frozen=True)
class File:
    """A file that a page shows in full: its first line is a comment with its name."""

    name: str
    text: str

    def write(self, folder: Path) -> None:
        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text, encoding="utf-8")


@dataclass(frozen=True)
class Edit:
    """A diff of a file that the page showed before: hunks begin with `@@`; each applies in one place."""

    name: str
    hunks: tuple[str, ...]

    def write(self, folder: Path) -> None:
        text = (folder / self.name).read_text(encoding="utf-8")
        for hunk in self.hunks:
            before, after = ("".join(_side(hunk, mark)) for mark in "-+")
            assert text.count(before) == 1, f"{self.name}: found {text.count(before)} times:\n{before}"
            text = text.replace(before, after)
        (folder / self.name).write_text(text, encoding="utf-8")


def _side(hunk: str, mark: str) -> Iterator[str]:
    return (line[1:] for line in hunk.splitlines(keepends=True) if line[0] in (" ", mark))


def steps(text: str) -> Iterator[Command | File | Edit]:
    """What the text of a page has its reader do, in its order."""
    for block in _BLOCK.finditer(text):
        body = block["text"]
        if block["kind"] == "console":
            for found in _COMMAND.finditer(body):
                yield Command(found["command"].replace("\\\n", " "), found["printed"].splitlines())
        elif file := _FILE.match(body):
            yield File(file["name"], body)
        elif edited := _EDITED.match(body):
            yield Edit(edited["name"], tuple(body[edited.end() :].split("@@\n")))


def commands(text: str) -> list[Command]:
    """The commands in the text of a page, in its order."""
    return [step for step in steps(text) if isinstance(step, Command)]


def _nothing(folder: Path) -> None:
    """The page begins in an empty folder."""


def _checkpoint(folder: Path, kind: str, **sizes: int) -> None:
    """A small language model in this folder, in the layout of the hub; beside it inputs, `in.safetensors`."""
    import transformers
    from safetensors.torch import save_file

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, vocab_size=64, **sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    ids = torch.randint(0, 64, (2, 16))
    save_file({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, folder.parent / "in.safetensors")


def _llama(folder: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    _checkpoint(folder, "llama", num_attention_heads=4, num_key_value_heads=2, **sizes)


def _readme(folder: Path) -> None:
    _llama(folder / "llama")


def _command_line(folder: Path) -> None:
    """A page of reference: each command has what other commands would have made."""
    from safetensors.torch import save_file

    _llama(folder / "checkpoint")
    shutil.copy(folder / "checkpoint" / "config.json", folder)
    shutil.copy(EXAMPLES / "mlp.py", folder / "model.py")
    for name in ("test_torch_fake_export.py", "my_package/export.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("import torch\nassert torch.cuda.is_available()\n")
    fakexport("export", f"hf:{folder}/config.json", "-o", folder / "cpu.pt2")
    fakexport("export", f"{folder}/model.py:factory", "-o", folder / "program.pt2")
    for name in ("encoder.pt2", "decoder.pt2"):
        shutil.copy(folder / "program.pt2", folder / name)
    shapes = {"fc1.weight": (256, 128), "fc1.bias": (256,), "fc2.weight": (10, 256), "fc2.bias": (10,)}
    save_file({name: torch.rand(shape) for name, shape in shapes.items()}, folder / "model.safetensors")


def _debugging(folder: Path) -> None:
    """A program that was exported with another epsilon than the one of the checkpoint's model."""
    import fakexport as fe

    _checkpoint(folder / "checkpoint", "gpt2", n_embd=32, n_layer=2, n_head=4)
    shutil.copy(folder / "checkpoint" / "config.json", folder)
    fakexport("export", f"hf:{folder}/config.json", "-o", folder / "right.pt2")
    program = fe.load(folder / "right.pt2")
    _, node, *_ = (node for node in program.graph.nodes if "layer_norm" in node.name)
    node.args = (*node.args[:4], 1.0)
    fe.save(program, folder / "model.pt2")


def _devices(folder: Path) -> None:
    shutil.copy(EXAMPLES / "mlp.py", folder / "model.py")


AGENT_MODEL = next(
    step.text
    for step in steps((ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8"))
    if isinstance(step, File) and step.name == "model.py"
)
"""The model of the quickstart, which fails for two reasons. A program can apply the fix of one of them."""


def _agent(folder: Path) -> None:
    (folder / "model.py").write_text(AGENT_MODEL, encoding="utf-8")


def _json(folder: Path) -> None:
    shutil.copy(EXAMPLES / "mlp.py", folder / "model.py")
    fakexport("export", f"{folder}/model.py:factory", "-o", folder / "model.pt2")


@dataclass(frozen=True)
class Page:
    """How the commands of a page are run: one after the other, in one folder with `examples` in it.

    Args:
        given: Writes the files that the page takes for granted into the folder.
        tools: What has to be installed besides the extra `test`.
        left_out: How a command begins that is not run -> why.
    """

    given: Callable[[Path], None] = _nothing
    tools: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


PAGES = {
    "README.md": Page(
        _readme,
        ("g++",),
        {
            "make ": "installs into .venv from a package index",
            "pip ": "the same, into this environment",
            "uvx ": "the same, into an environment of its own",
            "fakexport compile model.pt2": "minutes; docs/deploy.md has the same for a smaller model",
        },
    ),
    "docs/ci.md": Page(),
    "docs/ci_without_gpu.md": Page(),
    "docs/cli.md": Page(
        _command_line,
        left_out={
            "fakexport compile bound.pt2 --to aoti": "README.md has the same command",
            "fakexport export hf:llama/": "tests/unit/cli/test_generate_command.py runs it",
            "fakexport generate ": "tests/unit/cli/test_generate_command.py runs it",
            "fakexport verify-weights model.pt2 hf:": "tests/e2e/test_hub_command.py runs it",
            "fakexport verify-buffers ": "tests/unit/cli/test_verify_buffers_command.py runs it",
            "fakexport bench ": "minutes; tests/e2e/test_bench_command.py has one of each mode",
        },
    ),
    "docs/custom_operators.md": Page(tools=("g++", "cmake")),
    "docs/debugging.md": Page(_debugging),
    "docs/deploy.md": Page(tools=("g++", "cmake")),
    "docs/devices.md": Page(_devices),
    "docs/export_without_gpu.md": Page(),
    "docs/faq.md": Page(),
    "docs/hard_coded_device.md": Page(),
    "docs/index.md": Page(),
    "docs/json.md": Page(_json, ("jq",)),
    "docs/llama_on_h100.md": Page(),
    "docs/onnx_from_transformers.md": Page(),
    "docs/quickstart.md": Page(),
    "docs/runtimes.md": Page(),
    "docs/size_ranges.md": Page(_readme),
    "docs/weightless_pt2.md": Page(),
    "docs/why.md": Page(),
    "examples/agents/AGENTS.md": Page(_agent),
}
LEFT_OUT = {
    "CONTRIBUTING.md": "it installs into .venv and runs the tests",
    "docs/round_trip.md": "tests/e2e/test_captioning.py holds both scripts, at this size, to this line",
    "src/fakexport/deploy/cpp_project/template/README.md": (
        "the files that it names are any user's own; tests/e2e/test_cpp_runner.py builds and runs its project"
    ),
}
"""Pages of which no command is run -> why."""
