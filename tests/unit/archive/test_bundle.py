"""Several programs in one archive: what they share is one weight, in the file and in memory."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.export import ExportedProgram

import fakexport as fe
from fakexport.archive import describe
from fakexport.archive.loading import load_archive
from fakexport.archive.methods import methods_of
from fakexport.archive.weights import BindError, WeightsWarning, open_checkpoint
from fakexport.exporting.program import WeightsNotBoundError
from fakexport.files.container import ArchiveError
from tests.known_facts import with_facts
from tests.unit.archive.bundles import IMAGE, PREFIXES, STATE, Encode, assert_gives, fakes, live, speller

SHARED = 8  # The weights of the model, tied names counted once; and there is a buffer that is none.


@pytest.fixture(scope="module")
def weightless() -> fe.Bundle:
    return fe.Bundle(named_fakes(), prefixes=PREFIXES)


def named_fakes() -> dict[str, ExportedProgram]:
    programs = fakes()
    return {**programs, "encode": with_facts(programs["encode"], source="m.py:encode", topology="cpu")}


@pytest.fixture(scope="module")
def weightless_path(weightless: fe.Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "model.pt2"
    fe.save_bundle(weightless, path)
    return path


@pytest.fixture(scope="module")
def bound_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "bound.pt2"
    fe.save_bundle(live(speller()), path)
    return path


def test_a_weightless_bundle_comes_back_the_same(weightless: fe.Bundle, weightless_path: Path) -> None:
    loaded = load_archive(weightless_path, is_whole=True)

    assert list(loaded.bundle) == ["encode", "decode"]
    assert loaded.bundle.shared == weightless.shared
    assert dict(loaded.bundle.prefixes) == PREFIXES
    assert not loaded.bundle.is_bound
    for method, program in weightless.items():
        assert fe.diff(program, loaded.bundle[method]).is_identical
    assert loaded.manifest.methods["encode"].source == "m.py:encode"
    assert loaded.manifest.methods["decode"].topology == "cpu"
    with pytest.raises(WeightsNotBoundError):
        loaded.bundle["decode"].module()


def test_programs_that_were_exported_apart_share_what_a_checkpoint_calls_alike(weightless: fe.Bundle) -> None:
    assert len(weightless.shared) == SHARED + 1
    assert (("encode", "model.embed.weight"), ("decode", "net.embed.weight")) in weightless.shared
    assert len(fe.Bundle(dict(weightless)).shared) == 0
    assert len(fe.Bundle(live(speller())).shared) == SHARED + 1  # By identity, whatever the names.


def test_the_same_programs_give_the_same_bytes(weightless: fe.Bundle, tmp_path: Path) -> None:
    fe.save_bundle(weightless, tmp_path / "one.pt2")
    fe.save_bundle(named_fakes(), tmp_path / "other.pt2", prefixes=PREFIXES)
    fe.save_bundle(fe.load_bundle(tmp_path / "one.pt2"), tmp_path / "again.pt2")

    one, other, again = ((tmp_path / name).read_bytes() for name in ("one.pt2", "other.pt2", "again.pt2"))
    assert one == other == again


def test_one_checkpoint_binds_all_methods_and_a_shared_weight_is_one_tensor(
    weightless_path: Path, tmp_path: Path
) -> None:
    model = speller(3)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "head.weight"}
    save_file(weights, tmp_path / "model.safetensors")

    bound = fe.bind(fe.load_bundle(weightless_path), tmp_path / "model.safetensors")
    fe.save_bundle(bound, tmp_path / "bound.pt2")

    for bundle in (bound, fe.load_bundle(tmp_path / "bound.pt2")):
        assert bundle.is_bound
        assert_gives(bundle, model)
        encode, decode = bundle["encode"].state_dict, bundle["decode"].state_dict
        assert encode["model.look.weight"] is decode["net.look.weight"]
        assert len({t.data_ptr() for state in (encode, decode) for t in state.values()}) == SHARED
    with zipfile.ZipFile(tmp_path / "bound.pt2") as archive:
        names = [name for name in archive.namelist() if "/weight_" in name or "/tensor_" in name]
    assert len(names) == SHARED + 1  # The buffer is written once as well.


def test_converted_weights_are_one_tensor_as_well(weightless_path: Path) -> None:
    weights = {name: tensor.double() for name, tensor in speller().state_dict().items()}
    weights["norm.num_batches_tracked"] = torch.tensor(0)

    bound = fe.bind(fe.load_bundle(weightless_path), weights, dtype=torch.float32)

    one = bound["encode"].state_dict["model.look.weight"]
    assert one.dtype == torch.float32
    assert one is bound["decode"].state_dict["net.look.weight"]
    assert_gives(bound, speller())


def test_stock_torch_opens_a_bound_bundle(bound_path: Path) -> None:
    from torch.export.pt2_archive._package import load_pt2

    programs = load_pt2(str(bound_path)).exported_programs

    assert sorted(programs) == ["decode", "encode"]
    assert_gives(fe.Bundle(programs), speller())


def test_a_package_of_torch_with_several_programs_opens(tmp_path: Path) -> None:
    from torch.export.pt2_archive._package import package_pt2

    programs = {
        "one": torch.export.export(nn.Linear(3, 2), (IMAGE,)),
        "two": torch.export.export(nn.Linear(3, 2), (IMAGE,)),
    }
    expected = {method: program.module()(IMAGE) for method, program in programs.items()}
    for program in programs.values():
        program.example_inputs = None
    package_pt2(str(tmp_path / "stock.pt2"), exported_programs=programs)

    loaded = load_archive(tmp_path / "stock.pt2", is_whole=True)

    assert loaded.notes[0].startswith("no manifest")
    assert loaded.bundle.shared == ()  # Equal names are not one weight, since nothing says so.
    for method, program in loaded.bundle.items():
        assert torch.equal(program.module()(IMAGE), expected[method])
    assert torch.equal(fe.load(tmp_path / "stock.pt2", method="two").module()(IMAGE), expected["two"])


def test_one_method_is_loaded_alone_and_reads_no_weight_of_the_others(
    bound_path: Path, tmp_path: Path
) -> None:
    fe.save_bundle(
        {
            "one": torch.export.export(nn.Linear(3, 2).eval(), (IMAGE,)),
            "two": torch.export.export(nn.Linear(4, 2).eval(), (STATE,)),
        },
        tmp_path / "apart.pt2",
        prefixes={"two": "two."},
    )
    about = describe(tmp_path / "apart.pt2", method="two")
    (record,) = (t.location.file for t in about.only.manifest.tensors if t.name == "weight" and t.location)
    content = bytearray((tmp_path / "apart.pt2").read_bytes())
    with zipfile.ZipFile(tmp_path / "apart.pt2") as archive:
        data = archive.read(f"model/{record}")
    content[content.index(data)] ^= 1
    (tmp_path / "apart.pt2").write_bytes(content)

    assert fe.load(tmp_path / "apart.pt2", method="one").module()(IMAGE).shape == (2, 2)
    for open_it in (lambda path: fe.load(path, method="two"), fe.load_bundle):
        with pytest.raises(ArchiveError, match="damaged"):
            open_it(tmp_path / "apart.pt2")
    with torch.no_grad():
        assert torch.equal(fe.load(bound_path, method="encode").module()(IMAGE), Encode(speller())(IMAGE))


def test_state_that_one_method_writes_the_other_reads(tmp_path: Path) -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(2), persistent=False)

    class Write(nn.Module):
        def __init__(self, cache: Cache) -> None:
            super().__init__()
            self.cache = cache

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.cache.kept.copy_(x)
            return x + 0

    class Read(Write):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cache.kept + x

    cache = Cache()
    programs = {
        "write": torch.export.export(Write(cache), (torch.ones(2),)),
        "read": torch.export.export(Read(cache), (torch.ones(2),)),
    }
    fe.save_bundle(programs, tmp_path / "state.pt2")

    bundle = fe.load_bundle(tmp_path / "state.pt2")
    bundle["write"].module()(torch.tensor([3.0, 4.0]))

    assert bundle.shared == ((("write", "cache.kept"), ("read", "cache.kept")),)
    assert torch.equal(bundle["read"].module()(torch.ones(2)), torch.tensor([4.0, 5.0]))


def test_weights_may_stay_in_the_checkpoint(weightless_path: Path, tmp_path: Path) -> None:
    model = speller(5)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "head.weight"}
    save_file(weights, tmp_path / "model.safetensors")
    opened = open_checkpoint(tmp_path / "model.safetensors")

    bound = fe.bind(fe.load_bundle(weightless_path), opened)
    written = fe.save_bundle(bound, tmp_path / "linked.pt2", link=opened)

    assert {manifest.weights for manifest in written.methods.values()} == {"linked"}
    with zipfile.ZipFile(tmp_path / "linked.pt2") as archive:
        assert not [name for name in archive.namelist() if "/weight_" in name]
    loaded = fe.load_bundle(tmp_path / "linked.pt2")
    assert_gives(loaded, model)
    assert loaded["encode"].state_dict["model.look.bias"] is loaded["decode"].state_dict["net.look.bias"]


def test_a_checkpoint_that_lacks_a_weight_binds_nothing_and_names_it_as_the_checkpoint_would(
    weightless_path: Path,
) -> None:
    weights = dict(speller().state_dict())
    del weights["look.bias"]

    with pytest.raises(BindError, match=r"does not fit the bundle: 1 of 8 weights do not fit") as caught:
        fe.bind(fe.load_bundle(weightless_path), weights)
    report = fe.verify_weights(weightless_path, weights)

    assert caught.value.report.findings[0].names == ("look.bias",)
    assert report.findings == caught.value.report.findings
    assert not report.is_bindable


def test_only_what_no_method_wants_is_unexpected(weightless_path: Path) -> None:
    weights = {**speller().state_dict(), "other.weight": torch.ones(1)}

    with pytest.warns(WeightsWarning, match=r"^FE704: a mapping has an entry that .*: other\.weight$"):
        fe.bind(fe.load_bundle(weightless_path), weights)

    report = fe.verify_weights(weightless_path, weights)
    assert [(finding.code, finding.names) for finding in report.findings] == [("FE704", ("other.weight",))]
    assert (report.weights, report.is_bindable) == (SHARED, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fe.bind(fe.load_bundle(weightless_path), dict(speller().state_dict()))


def test_a_prefix_takes_a_method_s_part_of_a_checkpoint() -> None:
    halves = {
        "look": fe.export(lambda: nn.Linear(3, 4), (IMAGE,)),
        "write": fe.export(lambda: nn.Linear(4, 2), (STATE,)),
    }
    whole = nn.ModuleDict({"eye": nn.Linear(3, 4), "hand": nn.Linear(4, 2)})
    bundle = fe.Bundle(halves, prefixes={"look": "eye.", "write": "hand."})

    bound = fe.bind(bundle, dict(whole.state_dict()))

    assert bundle.shared == ()
    assert torch.equal(bound["look"].module()(IMAGE), whole["eye"](IMAGE))
    assert torch.equal(bound["write"].module()(STATE), whole["hand"](STATE))


def test_a_bundle_for_other_devices_is_bound_here(tmp_path: Path) -> None:
    fe.save_bundle(fakes("H100"), tmp_path / "h100.pt2", prefixes=PREFIXES)
    bundle = fe.load_bundle(tmp_path / "h100.pt2")
    weights = dict(speller().state_dict())

    with pytest.raises(ValueError, match=r"^the device cuda:0 is not .*; use devices=\{'cuda:0': 'cpu'\}"):
        fe.bind(bundle, weights)
    with pytest.raises(
        ValueError, match=r"^the device cuda:9 is not on this machine; choose a different one$"
    ):
        fe.bind(bundle, weights, devices="cuda:9")
    assert_gives(fe.bind(bundle, weights, devices="cpu"), speller())
    assert_gives(fe.bind(bundle, weights, devices={"cuda:0": "cpu"}), speller())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda p: fe.Bundle({}), ValueError, "at least one method"),
        (lambda p: fe.Bundle({"en-code": p["encode"]}), ValueError, "'en-code' is not a valid method name"),
        (lambda p: fe.Bundle({"con": p["encode"]}), ValueError, "'con' is not a valid method name"),
        (lambda p: fe.Bundle({"a": p["encode"], "A": p["encode"]}), ValueError, "differ only in case"),
        (lambda p: fe.Bundle({"a": nn.Linear(1, 1)}), TypeError, "the method a is a Linear"),
        (lambda p: fe.Bundle(p, prefixes={"prefill": "x."}), ValueError, "a prefix was passed for 'prefill'"),
        (
            lambda p: fe.Bundle(p, prefixes={"decode": ("", "model.")}),
            ValueError,
            r"the weight net\.\S+ of decode does not begin with the prefix 'model\.'",
        ),
        (lambda p: fe.Bundle(p)["prefill"], KeyError, "no method 'prefill'; the methods are encode, decode"),
        (
            lambda p: fe.Bundle({**p, "decode": live(speller())["decode"]}),
            ValueError,
            "the weights of decode are bound, but the weights of encode are not",
        ),
        (lambda p: fe.save(p, "x.pt2"), TypeError, "a dict is not a program; use `save_bundle`"),
        (
            lambda p: fe.save_bundle(fe.Bundle(p), "x.pt2", prefixes=PREFIXES),
            ValueError,
            "the bundle already has prefixes",
        ),
    ],
)
def test_wrong_use_is_one_line(make, error, message, weightless: fe.Bundle) -> None:
    with pytest.raises(error, match=message) as caught:
        make(dict(weightless))
    assert len(str(caught.value).splitlines()) == 1


def test_two_weights_of_one_name_are_refused() -> None:
    def linear(width: int, seed: int, device: str = "cpu") -> torch.export.ExportedProgram:
        torch.manual_seed(seed)
        return torch.export.export(nn.Linear(width, 2), (torch.ones(1, width),))

    with pytest.raises(
        ValueError, match=r"weight is float32\[2, 3\] on cpu in a but float32\[2, 4\] on cpu in b"
    ):
        fe.Bundle({"a": linear(3, 0), "b": linear(4, 0)})
    with pytest.raises(ValueError, match=r"weight has different data in a and in b: .* prefixes"):
        fe.Bundle({"a": linear(3, 0), "b": linear(3, 1)})
    assert len(fe.Bundle({"a": linear(3, 0), "b": linear(3, 0)}).shared) == 2
    there = fe.export(lambda: nn.Linear(3, 2), (IMAGE,), target="H100")
    here = fe.export(lambda: nn.Linear(3, 2), (IMAGE,))
    with pytest.raises(ValueError, match=r"on cuda:0 in a but .* on cpu in b"):
        fe.Bundle({"a": there, "b": here})


def test_what_takes_one_program_names_the_methods(weightless_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"is a bundle of the methods encode, decode: choose one"):
        fe.load(weightless_path)
    with pytest.raises(ArchiveError, match=r"has no method 'prefill'; the methods are encode, decode"):
        fe.load(weightless_path, method="prefill")
    fe.save(fakes()["encode"], tmp_path / "one.pt2")
    with pytest.raises(ArchiveError, match="is not a bundle, so it has no method"):
        fe.load(tmp_path / "one.pt2", method="encode")
    assert list(fe.load_bundle(tmp_path / "one.pt2")) == ["model"]
    assert fe.diff(fe.load(tmp_path / "one.pt2", method="model"), fe.load(tmp_path / "one.pt2")).is_identical
    assert methods_of(tmp_path / "one.pt2") == ()


def test_one_named_program_of_torch_is_bound_by_the_names_that_verify_weights_expects(tmp_path: Path) -> None:
    from torch.export.pt2_archive._package import package_pt2

    linear = nn.Linear(3, 2)
    package_pt2(
        str(tmp_path / "one.pt2"), exported_programs={"encode": torch.export.export(linear, (IMAGE,))}
    )
    named = {f"encode.{name}": tensor for name, tensor in linear.state_dict().items()}

    assert fe.verify_weights(tmp_path / "one.pt2", named).is_bindable
    assert fe.bind(fe.load_bundle(tmp_path / "one.pt2"), named).is_bound


def test_equal_buffers_of_one_method_stay_two_and_are_written_once_for_all_methods(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("one", torch.ones(3), persistent=False)
            self.register_buffer("other", torch.ones(3), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.one + self.other

    programs = {name: torch.export.export(Twice(), (IMAGE,)) for name in ("a", "b")}

    fe.save_bundle(programs, tmp_path / "twice.pt2")
    bundle = fe.load_bundle(tmp_path / "twice.pt2")

    a, b = bundle["a"].constants, bundle["b"].constants
    assert a["one"] is b["one"]
    assert a["one"].data_ptr() != a["other"].data_ptr()
    with zipfile.ZipFile(tmp_path / "twice.pt2") as archive:
        assert len([name for name in archive.namelist() if "/tensor_" in name]) == 2


@pytest.mark.parametrize("opened", ["load", "load_bundle"])
def test_a_retargeted_method_reads_its_part_of_the_checkpoint(
    opened: str, weightless_path: Path, tmp_path: Path
) -> None:
    program = (
        fe.load(weightless_path, method="encode")
        if opened == "load"
        else fe.load_bundle(weightless_path)["encode"]
    )
    model = speller(4)
    weights = dict(model.state_dict())

    fe.save(fe.retarget(program, "cuda:0"), tmp_path / "gpu.pt2")
    moved = fe.load(tmp_path / "gpu.pt2")

    for subject in (tmp_path / "gpu.pt2", moved):
        assert fe.verify_weights(subject, weights).is_bindable
        bound = fe.bind(subject, weights, devices={"cuda:0": "cpu"})
        with torch.no_grad():
            assert torch.equal(bound.module()(IMAGE), Encode(model)(IMAGE))


def test_methods_that_come_out_of_a_bundle_have_their_prefixes_in_another(
    weightless: fe.Bundle, weightless_path: Path
) -> None:
    methods = {name: fe.load(weightless_path, method=name) for name in weightless}

    assert fe.Bundle(methods).shared == weightless.shared
    assert dict(fe.Bundle(methods).prefixes) == PREFIXES
    named = fe.Bundle({"only": methods["encode"]}, prefixes={"only": ""})
    assert not named.prefixes
    bound = fe.bind(named, {f"model.{name}": tensor for name, tensor in speller().state_dict().items()})
    assert not bound.prefixes
