"""Objects of C++ classes in archives: saved, described, loaded, bound, compared, and of strangers."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fakexport as fe
from fakexport.archive import describe
from fakexport.archive.manifest import UnboundName
from fakexport.archive.manifest_json import write_described
from fakexport.archive.methods import read_methods
from fakexport.archive.saved_object import object_record, read_saved_object
from fakexport.exporting.program import RetargetError
from fakexport.files.container import ArchiveError
from fakexport.files.container.limits import Limits
from fakexport.files.container.reader import read_container
from fakexport.files.documents.document_error import DocumentError
from tests.forked import run_python
from tests.torchbind import LIBRARY, NAMESPACE, Adds, Waits, fake_classes, foo, queue
from tests.unit.archive.described import described_otherwise, manifest_of, records_of

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="this torch comes without its test classes")

FOO = f"{NAMESPACE}::_Foo"
OBJECT, CONFIG = "data/constants/custom_obj_0", "data/constants/model_constants_config.json"


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    with fake_classes():
        yield


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weight-less, of `Adds`."""
    path = tmp_path_factory.mktemp("objects") / "adds.pt2"
    fe.save(fe.export(Adds, (torch.ones(2, 3),)), path)
    return path


def test_a_record_tells_the_state_and_makes_the_object_again() -> None:
    view = torch.arange(6.0).reshape(2, 3)
    tensors = [view, view.t(), view[1:], torch.ones(2, dtype=torch.bfloat16), torch.empty(0), torch.tensor(3)]
    record = object_record(queue(*tensors))

    saved = read_saved_object(record, Limits())
    (_, first), (_, found) = saved.state

    assert saved.class_name == f"{NAMESPACE}::_TensorQueue"
    assert torch.equal(first, torch.full((2,), -1.0))
    for tensor, wanted in zip(found, tensors, strict=True):
        torch.testing.assert_close(tensor, wanted, rtol=0, atol=0)
        assert tensor.stride() == wanted.stride()
    assert object_record(saved.made()) == record


def test_a_state_that_the_class_does_not_take_is_refused() -> None:
    saved = replace(read_saved_object(object_record(foo(1, 2)), Limits()), state=["text"])

    with pytest.raises(DocumentError, match=f"^the class {FOO} does not accept the state: ") as caught:
        saved.made()
    assert "\n" not in str(caught.value)


def test_a_program_with_an_object_is_saved_loaded_bound_and_runs(archive: Path, tmp_path: Path) -> None:
    model, x = Adds(), torch.randn(2, 3)
    bound = fe.bind(fe.load(archive), model.state_dict())
    fe.save(bound, tmp_path / "bound.pt2")

    for program in (bound, fe.load(tmp_path / "bound.pt2"), torch.export.load(tmp_path / "bound.pt2")):
        assert torch.equal(program.module()(x), model(x))


def test_what_an_object_does_to_itself_is_done(tmp_path: Path) -> None:
    model, z = Waits(), torch.randn(2, 3)
    fe.save(fe.export(Waits(), (z,)), tmp_path / "waits.pt2")

    program = fe.load(tmp_path / "waits.pt2").module()

    for _ in range(4):
        assert torch.equal(program(z), model(z))


def test_torch_reads_the_same_program(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    model = Adds()
    program = fe.bind(fe.export(model, (x,), strict=True), model.state_dict())
    fe.save(program, tmp_path / "ours.pt2")

    assert fe.diff(fe.load(tmp_path / "ours.pt2"), program).is_identical
    assert fe.diff(torch.export.load(tmp_path / "ours.pt2"), program).is_identical


def test_an_archive_of_torch_is_read_without_trust_if_nothing_else_is_pickled(tmp_path: Path) -> None:
    model, x = Adds(), torch.ones(2, 3)
    stock = torch.export.export(model, (x,))
    stock.example_inputs = None
    torch.export.save(stock, tmp_path / "stock.pt2")

    assert torch.equal(fe.load(tmp_path / "stock.pt2").module()(x), model(x))


def test_a_description_needs_no_library(archive: Path) -> None:
    code = f"""
from fakexport import ArchiveError
from fakexport.archive import describe, load
found = describe({str(archive)!r}).only
print(found.manifest.library_classes, found.program.library_classes, found.constants)
try:
    load({str(archive)!r})
except ArchiveError as error:
    print(error)
"""
    done = run_python(code)

    classes, refusal = done.stdout.splitlines()
    assert classes == f"('{FOO}',) ('{FOO}',) ()"
    assert refusal.endswith(
        f"the C++ class {FOO} is not registered: pass the file of its library with --library"
    )


def test_objects_are_compared_by_their_states() -> None:
    x = (torch.ones(2, 3),)
    one, other = fe.export(lambda: Adds(1, 2), x), fe.export(lambda: Adds(1, 3), x)

    (difference,) = fe.diff(one, other).constants

    assert fe.diff(one, fe.export(lambda: Adds(1, 2), x)).is_identical
    assert (difference.name, difference.field, difference.a, difference.b) == (
        "foo",
        "state",
        "[1, 2]",
        "[1, 3]",
    )


def test_a_loaded_program_is_retargeted_with_proof(archive: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # What is not proven is a warning.
        moved = fe.retarget(fe.load(archive), "cpu=cuda:0")
    fe.save(moved, tmp_path / "moved.pt2")

    assert fe.diff(fe.load(tmp_path / "moved.pt2"), moved).is_identical
    assert str(moved.graph.output_node().args[0][0].meta["val"].device) == "cuda:0"


def test_an_object_with_tensors_on_the_cpu_does_not_go_along() -> None:
    program = fe.export(Waits(), (torch.ones(2, 3),))

    with pytest.raises(RetargetError) as caught:
        fe.retarget(program, "cpu=cuda:0")
    (found,) = caught.value.diagnostics
    assert found.code == "FE502"
    assert found.labels[0].span.path.endswith("tests/torchbind.py")


def test_equal_objects_of_several_methods_are_written_once(tmp_path: Path) -> None:
    x, model = torch.ones(2, 3), Adds()
    programs = {"one": fe.export(model, (x,)), "two": fe.export(model, (torch.ones(5, 3),))}
    fe.save_bundle(programs, tmp_path / "bundle.pt2")

    with read_container(tmp_path / "bundle.pt2") as container:
        assert [name for name in container.names if "custom_obj" in name] == [OBJECT]
        assert read_methods(container).names == ("one", "two")
    for program in fe.bind(fe.load_bundle(tmp_path / "bundle.pt2"), model.state_dict()).values():
        assert torch.equal(program.module()(program_input(program)), model(program_input(program)))


def program_input(program: torch.export.ExportedProgram) -> torch.Tensor:
    (name,) = program.graph_signature.user_inputs
    node = next(node for node in program.graph.nodes if node.name == name)
    return torch.ones(node.meta["val"].shape)


def test_a_class_without_def_pickle_is_refused(tmp_path: Path) -> None:
    program = fe.export(Adds(), (torch.ones(2, 3),))
    program.constants["foo"] = torch.classes.profiling._ScriptProfile()

    with pytest.raises(ValueError, match=r"^the constant foo cannot be saved: .* has no `def_pickle`$"):
        fe.save(program, tmp_path / "adds.pt2")
    assert not (tmp_path / "adds.pt2").exists()


def rewritten(
    archive: Path, to: Path, change: Callable[[dict[str, bytes]], None], **manifest: object
) -> Path:
    """The archive with other records or another manifest, and digests that fit them."""
    records = records_of(archive)
    change(records)
    write_described(to, records, described_otherwise(manifest_of(archive), **manifest))
    return to


def config(**fields: object) -> Callable[[dict[str, bytes]], None]:
    def change(records: dict[str, bytes]) -> None:
        document = json.loads(records[CONFIG])
        document["config"]["foo"].update(fields)
        records[CONFIG] = json.dumps(document).encode()

    return change


def graph_class(name: str) -> Callable[[dict[str, bytes]], None]:
    def change(records: dict[str, bytes]) -> None:
        model = records["models/model.json"]
        records["models/model.json"] = model.replace(b"_TorchScriptTesting._Foo", name.encode())

    return change


def of_torch(records: dict[str, bytes]) -> None:
    """As if it were the packed weights of a quantised layer, which are made of tensors and not of numbers."""
    with zipfile.ZipFile(io.BytesIO(records[OBJECT])) as record:
        pickled = record.read("archive/data.pkl")
    content = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(content)
    pickled = pickled.replace(b"_TorchScriptTesting\n_Foo", b"quantized\nLinearPackedParamsBase")
    writer.write_record("data.pkl", pickled, len(pickled))
    writer.write_end_of_file()
    records[OBJECT] = content.getvalue()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r.update({OBJECT: b"no zip"}), "too few for an archive"),
        (lambda r: r.update({OBJECT: object_record(queue())}), "a different class in the graph"),
        (lambda r: r.update({OBJECT: r[OBJECT].replace(b"K\x0aK\x14", b"K\x0aK\x15")}), "is damaged in"),
        (lambda r: r.pop(OBJECT), "custom_obj_0: is missing"),
        (config(path_name="tensor_0"), "is a pickled payload, rejected by default"),
        (config(path_name="custom_obj_7"), "custom_obj_7: is missing"),
        (config(path_name="../weights/custom_obj_0"), "is a pickled payload, rejected by default"),
        (config(is_param=True), "neither a tensor nor a C++ object"),
        (config(use_pickle=False), "neither a tensor nor a C++ object"),
        (config(tensor_meta={}), "is a pickled payload, rejected by default"),
        (graph_class("_TorchScriptTesting._TensorQueue"), "a different class in the graph"),
        (graph_class("_TorchScriptTesting._Bar"), "_TorchScriptTesting::_Bar is not registered"),
        (graph_class("such"), "is not the name of a C++ class"),
        (graph_class("signal_ops._Foo; import os"), "is not the name of a C++ class"),
    ],
)
def test_a_bent_archive_is_refused_in_one_line(
    change: Callable[[dict[str, bytes]], None], reason: str, archive: Path, tmp_path: Path
) -> None:
    bent = rewritten(archive, tmp_path / "bent.pt2", change)

    with pytest.raises(ArchiveError) as caught:
        fe.load(bent)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_class_that_the_manifest_names_must_be_one(archive: Path, tmp_path: Path) -> None:
    for name, reason in (
        ("no::Such", "is not registered"),
        ("/tmp/libops.so", "is not a valid C\\+\\+ class"),
    ):
        bent = rewritten(archive, tmp_path / "bent.pt2", lambda r: None, library_classes=(name,))
        with pytest.raises(ArchiveError, match=reason):
            fe.load(bent)


def test_an_object_is_no_constant_that_may_lack_its_value(archive: Path, tmp_path: Path) -> None:
    unbound = (UnboundName("foo", "unknown", "for a reason"),)
    bent = rewritten(archive, tmp_path / "bent.pt2", lambda r: None, unbound_constants=unbound)

    assert isinstance(fe.load(bent).constants["foo"], torch.ScriptObject)


def test_a_tensor_in_the_place_of_an_object_is_refused(tmp_path: Path) -> None:
    class Both(Adds):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.ones(3), persistent=False)

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return super().forward(z) + self.shift

    def swap(records: dict[str, bytes]) -> None:
        document = json.loads(records[CONFIG])
        names = document["config"]
        names["foo"], names["shift"] = names["shift"], names["foo"]
        records[CONFIG] = json.dumps(document).encode()

    fe.save(fe.export(Both, (torch.ones(2, 3),)), tmp_path / "both.pt2")
    bent = rewritten(tmp_path / "both.pt2", tmp_path / "bent.pt2", swap)

    with pytest.raises(
        ArchiveError, match=r": is a tensor in the graph and a C\+\+ object in the config, or the reverse"
    ):
        fe.load(bent)


def test_states_have_a_limit(archive: Path) -> None:
    content = object_record(queue(*[torch.ones(1)] * 50))

    read_saved_object(content, Limits())
    with pytest.raises(DocumentError, match=r"^has a state of more than 999 bytes, not counting tensors$"):
        read_saved_object(content, Limits(state_bytes=999))


def test_torch_s_own_classes_are_for_the_trusted(archive: Path, tmp_path: Path) -> None:
    """They are there though the user has loaded no library, so that a stranger could choose any of them."""

    def change(records: dict[str, bytes]) -> None:
        of_torch(records)
        graph_class("quantized.LinearPackedParamsBase")(records)

    bent = rewritten(archive, tmp_path / "bent.pt2", change, library_classes=())

    with pytest.raises(ArchiveError, match=r"torch's own class quantized::LinearPackedParamsBase") as caught:
        fe.load(bent)
    assert caught.value.is_trust_missing
    assert describe(bent).only.program.library_classes == ("quantized::LinearPackedParamsBase",)
    with pytest.raises(ArchiveError, match=r"quantized::LinearPackedParamsBase does not accept the state: "):
        fe.load(bent, trust=True)


def test_trust_is_for_all_programs_of_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {"one": fe.export(Adds(), (torch.ones(2, 3),)), "two": fe.export(Adds(), (torch.ones(5, 3),))}
    fe.save_bundle(programs, tmp_path / "bundle.pt2")
    # A class that is really torch's own has a state that nobody can write by hand.
    monkeypatch.setattr("fakexport.archive.loaded_constants.is_class_of_torch", lambda name: name == FOO)

    for read in (fe.load_bundle, lambda path: fe.load(path, method="one")):
        with pytest.raises(ArchiveError, match=f"torch's own class {FOO}") as caught:
            read(tmp_path / "bundle.pt2")
        assert caught.value.is_trust_missing
    bundle = fe.load_bundle(tmp_path / "bundle.pt2", trust=True)
    assert all(isinstance(program.constants["foo"], torch.ScriptObject) for program in bundle.values())
