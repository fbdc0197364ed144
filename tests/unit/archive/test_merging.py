"""Programs that are copied into a bundle are those that would be loaded and saved again, byte for byte."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fakexport as fe
from fakexport.archive import load, merge, save_bundle
from fakexport.archive.manifest_json import MANIFEST, encode_manifest
from fakexport.checking import Wanted, report_on
from fakexport.error import InvalidValue
from fakexport.exporting.capture import Request
from fakexport.files.container import Limits
from fakexport.files.container.writer import write_container
from fakexport.files.documents import ADAPTER_MODES
from tests.known_facts import with_facts
from tests.unit.archive.bundles import IMAGE, PREFIXES, fakes, live, speller
from tests.unit.archive.described import manifest_of, records_of

Paths = Mapping[str, Path]


class Table(nn.Module):
    """Reads equal buffers, a numbered constant and a weight that checkpoints may omit."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = factor
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("ids", torch.arange(3))
        for name in ("one", "other"):
            self.register_buffer(name, torch.full((3,), factor), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.one + self.other) * torch.tensor([self.factor, 1.0, 0.0]) + self.weight + self.ids


class Scaled(nn.Module):
    """Has a buffer that may be missing in its state dict."""

    def __init__(self, is_persistent: bool) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3), persistent=is_persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Attribute(nn.Module):
    """Has a tensor that is neither a parameter nor a buffer, and may write to it."""

    def __init__(self, is_written: bool) -> None:
        super().__init__()
        self.is_written = is_written
        self.held = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_written:
            self.held.add_(x.sum())
        return x + self.held


def saved(programs: Mapping[str, Any], folder: Path) -> Paths:
    for name, program in programs.items():
        fe.save(program, folder / f"{name}.pt2")
    return {name: folder / f"{name}.pt2" for name in programs}


def made(model: Callable[[], nn.Module], **options: Any) -> Any:
    return fe.export(model, (IMAGE,), **options)


def stages() -> Mapping[str, Any]:
    model = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()  # noqa: E731
    return dict(fe.split(made(model, target="H100"), at=["2"]))


def ranks() -> Mapping[str, Any]:
    pytest.importorskip("transformers")
    from tests.parallel_models import factory_of

    own = {f"rank{rank}": fe.export(factory_of("llama"), parallel="tp=2", rank=rank) for rank in (0, 1)}
    return {**own, "again": own["rank1"]}


def ranges() -> Mapping[str, Any]:
    request = Request(
        source=lambda: (nn.Linear(3, 2), (torch.zeros(4, 3),)), dynamic_shapes=["input.0=1|2..8"]
    )
    report = report_on(request, wanted=Wanted(programs=True))
    return {f"range{index}": verdict.program for index, verdict in enumerate(report.verdicts)}


def sources() -> Mapping[str, Any]:
    programs = fakes().items()
    return {method: with_facts(each, source=f"m.py:{method}", dtype="float32") for method, each in programs}


def tables() -> Mapping[str, Any]:
    return {"a": made(Table), "b": made(Table, dynamic_shapes="auto"), "c": made(nn.ReLU)}


CASES: dict[str, Callable[[], Mapping[str, Any]]] = {
    "prefixes": fakes,
    "sources": sources,
    "bound with prefixes": lambda: live(speller()),
    "constants": tables,
    "constants of bound programs": lambda: {n: torch.export.export(Table(), (IMAGE,)) for n in "ab"},
    "buffers": lambda: {f"is_{each}": torch.export.export(Scaled(each), (IMAGE,)) for each in (True, False)},
    "no weights": lambda: {"a": made(nn.ReLU), "b": torch.export.export(nn.Tanh(), (IMAGE,))},
    "stages": stages,
    "ranks": ranks,
    "ranges": ranges,
    "alone": lambda: {"model": made(Table)},
}


@pytest.mark.parametrize("case", CASES)
def test_a_merge_writes_the_bytes_of_loading_and_saving(case: str, tmp_path: Path) -> None:
    paths, prefixes = saved(CASES[case](), tmp_path), PREFIXES if "prefixes" in case else None
    loaded = {method: load(path, trust=True) for method, path in paths.items()}
    expected = save_bundle(loaded, tmp_path / "old", prefixes=prefixes)

    found = merge(parts(paths), tmp_path / "new", prefixes=prefixes, trust=case == "ranks")

    assert found == expected
    assert (tmp_path / "new").read_bytes() == (tmp_path / "old").read_bytes()


def parts(paths: Paths) -> dict[str, tuple[Path, str | None]]:
    return {method: (path, None) for method, path in paths.items()}


@pytest.mark.filterwarnings("ignore")
def test_a_program_with_an_adapter_is_copied(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from tests.peft_adapters import saved_adapter, saved_base

    base = saved_base(tmp_path / "base", "llama")
    adapter = saved_adapter(tmp_path / "adapter", base)
    programs = {mode: fe.export(f"hf:{base}", adapter=adapter, adapter_mode=mode) for mode in ADAPTER_MODES}
    paths = saved(programs, tmp_path)
    save_bundle({method: load(path) for method, path in paths.items()}, tmp_path / "old")

    assert merge(parts(paths), tmp_path / "new") is not None
    assert (tmp_path / "new").read_bytes() == (tmp_path / "old").read_bytes()


def test_methods_of_bundles_are_copied_and_stay_shared(tmp_path: Path) -> None:
    fe.save_bundle(live(speller()), tmp_path / "bound")  # Shared by identity: the names differ.
    fe.save_bundle({"a": made(Table), "b": made(Table)}, tmp_path / "tables")
    tables = {f"table_{name}": (tmp_path / "tables", name) for name in "ab"}
    speech = {name: (tmp_path / "bound", name) for name in ("decode", "encode")}

    assert merge({**tables, **speech}, tmp_path / "new") is None  # Only some are bound.
    assert merge(speech, tmp_path / "new") is not None
    bundle = fe.load_bundle(tmp_path / "new")
    assert bundle["encode"].state_dict["model.look.bias"] is bundle["decode"].state_dict["net.look.bias"]
    assert merge({"a": tables["table_b"], "b": tables["table_a"]}, tmp_path / "two") is not None
    assert (tmp_path / "two").read_bytes() == (tmp_path / "tables").read_bytes()


def linear() -> nn.Module:
    return nn.Linear(3, 2)


UNLIKE: dict[str, Callable[[], Mapping[str, Any]]] = {
    "values": lambda: {"a": made(Table), "b": made(lambda: Table(3.0))},
    "devices": lambda: {"a": made(linear), "b": made(linear, target="H100")},
    "shapes": lambda: {"a": made(linear), "b": made(lambda: nn.Linear(3, 4))},
    "attributes": lambda: {"writes": made(lambda: Attribute(True)), "reads": made(lambda: Attribute(False))},
}


@pytest.mark.parametrize("other", UNLIKE)
def test_programs_whose_tensors_cannot_be_compared_are_left_to_the_loader(other: str, tmp_path: Path) -> None:
    paths = saved(UNLIKE[other](), tmp_path)

    assert merge(parts(paths), tmp_path / "new") is None
    assert not (tmp_path / "new").exists()
    loaded = {method: load(path) for method, path in paths.items()}
    if other == "attributes":
        assert fe.Bundle(loaded).shared == ((("writes", "held"), ("reads", "held")),)
    else:
        with pytest.raises(ValueError, match="prefixes"):
            fe.Bundle(loaded)


def test_the_versions_of_each_export_are_kept(tmp_path: Path) -> None:
    paths = saved({"a": made(Table), "b": made(Table)}, tmp_path)
    rewritten(paths["b"], lambda document, _: document["methods"]["model"]["versions"].update(torch="2.11.0"))

    found = merge(parts(paths), tmp_path / "new")

    assert found is not None
    assert [about.versions["torch"] for about in found.methods.values()] == [str(torch.__version__), "2.11.0"]
    assert list(fe.load_bundle(tmp_path / "new")) == ["a", "b"]


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], Any]) -> None:
    """Change the manifest or the records of an archive, with hashes that fit them."""
    records, document = records_of(path), json.loads(encode_manifest(manifest_of(path)))
    change(document, records)
    last = lambda digests: json.dumps({**document, "records": list(digests)}, default=vars).encode()  # noqa: E731
    write_container(path, records, last=(MANIFEST, last))


def in_model(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    def changed(_: dict[str, Any], records: dict[str, bytes]) -> None:
        document = json.loads(records["models/model.json"])
        change(document)
        records["models/model.json"] = json.dumps(document).encode()

    return changed


def in_config(name: str, **changes: Any) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    def changed(_: dict[str, Any], records: dict[str, bytes]) -> None:
        record = next(each for each in records if each.endswith("_weights_config.json"))
        document = json.loads(records[record])
        document["config"][name].update(changes)
        records[record] = json.dumps(document).encode()

    return changed


class Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code of the file runs",)


def inputs(value: object) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def script() -> bytes:
    content = io.BytesIO(inputs(((), {})))
    with zipfile.ZipFile(content, "a") as archive:
        archive.writestr("archive/constants.pkl", b"")
    return content.getvalue()


SIZE = {"as_expr": {"expr_str": "__import__('os')", "hint": None}}
NUMBERS = [{"as_int": 2**40}, {"as_int": 2**40}]
HUGE = {
    **{"dtype": 7, "layout": 7, "requires_grad": False, "device": {"type": "cpu", "index": None}},
    **{"sizes": NUMBERS, "strides": NUMBERS, "storage_offset": {"as_int": 0}},
}
ATTACKS: dict[str, Callable[[dict[str, Any], dict[str, bytes]], Any]] = {
    "a guard": in_model(lambda d: d["guards_code"].append("print('code of the file runs')")),
    "a size": in_model(lambda d: d["graph_module"]["graph"]["sym_int_values"].update(size=SIZE)),
    "a tensor": in_model(lambda d: d["graph_module"]["graph"]["tensor_values"].update(inner=HUGE)),
    "an operator": in_model(lambda d: d["graph_module"]["graph"]["nodes"][0].update(target="os.system")),
    "an effect": in_model(
        lambda d: d["graph_module"]["graph"]["nodes"][0].update(target="torch.ops.aten.from_file.default")
    ),
    "a schema": in_model(lambda d: d["schema_version"].update(major=99)),
    "example inputs": lambda _, records: records.update({"data/sample_inputs/model.pt": inputs(Attack())}),
    "old example inputs": lambda _, r: r.update({"data/sample_inputs/model.pt": pickle.dumps(Attack())}),
    "a script": lambda _, records: records.update({"data/sample_inputs/model.pt": script()}),
    "a weight's record": in_config("bias", path_name="weight_0"),
    "a weight's kind": in_config("bias", is_param=False),
    "a record": lambda _, records: records.update({"data/native.so": b""}),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_the_loader_would_reject_or_replace_is_not_copied(attack: str, tmp_path: Path) -> None:
    paths = saved({"a": torch.export.export(nn.Linear(3, 2), (IMAGE,))}, tmp_path)
    assert merge(parts(paths), tmp_path / "good") is not None
    rewritten(paths["a"], ATTACKS[attack])

    assert merge(parts(paths), tmp_path / "new") is None
    assert not (tmp_path / "new").exists()


def test_archives_of_torch_and_linked_weights_are_left_to_the_loader(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(nn.Linear(3, 2), (IMAGE,)), tmp_path / "stock.pt2")
    save_file(dict(linear().state_dict()), tmp_path / "weights.safetensors")
    checkpoint = fe.open_checkpoint(tmp_path / "weights.safetensors")
    fe.save(fe.bind(made(linear), checkpoint), tmp_path / "linked.pt2", link=checkpoint)

    for name in ("stock.pt2", "linked.pt2"):
        assert merge({"a": (tmp_path / name, None)}, tmp_path / "new") is None


def test_programs_that_no_reader_would_accept_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fakexport.files.container import reader

    paths = saved({"a": made(Table)}, tmp_path)
    most = next(r.size for r in manifest_of(paths["a"]).records if r.name == "models/model.json")
    monkeypatch.setattr(reader, "Limits", lambda: replace(Limits(), json_bytes=2 * most - 1))

    assert merge(parts(paths), tmp_path / "one") is not None
    with pytest.raises(InvalidValue, match=f"the programs exceed {2 * most - 1} bytes"):
        merge(parts({"a": paths["a"], "b": paths["a"]}), tmp_path / "two")
