"""Reports as pages: what is in them, and what names of models and files cannot do to them."""

import subprocess
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fakexport.archive.archive_difference import ArchiveDifference, FactDifference, WeightDifference
from fakexport.exporting.program import ModuleSummary
from fakexport.exporting.program.summary import TensorTotals
from fakexport.report import (
    PlannedModule,
    PlannedPeak,
    PlannedStep,
    ProjectReport,
    TargetDifference,
    archive_difference_document,
    check_document,
    plan_document,
    project_document,
    render_page,
)
from fakexport.rules.diagnostics import Change, Diagnostic, Edit, Fix, Label, Span
from tests.page_reading import HOSTILE, assert_loads_nothing, read_page, rows
from tests.unit.report.sample_plan import sample_device, sample_plan
from tests.unit.report.sample_reports import (
    everything_differs,
    full_report,
    report,
    summary,
    transfer,
    verdict,
)


def module(name="", count=1, children=(), **changes):
    made = ModuleSummary(
        name, name, "Block", count, 0, 8320, 0, 0, 0, 33280, ("float32",), {"cpu": 1}, (), ()
    )
    return replace(made, children=tuple(children), **changes)


def page_of(value):
    text = render_page(check_document(value))
    return read_page(text)


def names_everywhere(name):
    """A report in which everything that a model or a file can choose is `name`."""
    span = Span(f"{name}.py", 1, 1, 2, name)
    found = Diagnostic(
        "FE201",
        "error",
        "branch on tensor data",
        (Label(span, name),),
        (name,),
        Fix(name, command=name),
        node=name,
        module_path=name,
        targets=(name,),
    )
    shown = verdict(
        name,
        notes=(name,),
        transfers=(transfer(module_path=name, operator=name, span=span),),
        modules=module(name, children=[module(name)], class_name=name, tied_to=(name,)),
    )
    return report(
        shown,
        source=name,
        diagnostics=(found,),
        differences=(TargetDifference(name, name, everything_differs()),),
        versions={name: name},
    )


def test_a_page_shows_all_parts_of_a_report():
    blocks = module("0-5", 6, [module("a")])
    checked = full_report()
    first = replace(checked.verdicts[0], modules=module("", 1, [module("layers", children=[blocks])]))
    checked = replace(checked, verdicts=(first, *checked.verdicts[1:]))

    root = page_of(checked)

    assert_loads_nothing(root)
    assert [heading.text for heading in root.all("h2")] == [
        *("Verdicts", "Diagnostics", "Differences between targets", "Transfers", "Modules", "Explanations"),
        *("Measurements", "Versions"),
    ]
    assert [row[0] for row in rows(root, "One row per target")] == [v.target.name for v in checked.verdicts]
    findings = [each for each in root.all("article") if each.attributes["class"] == "finding"]
    assert len(findings) == len(checked.diagnostics)
    (tree,) = [each for each in root.all("div") if each.attributes.get("class") == "tree"]
    folded = [" ".join(each.text.split()) for each in tree.all("summary")]
    assert folded[-1].startswith("0-5 6 × Block 8,320 parameters 32.5 KiB float32 cpu")
    assert all("open" in each.attributes for finding in findings for each in finding.all("details"))


def test_many_findings_expand_only_the_first_error():
    found = names_everywhere("name").diagnostics[0]
    warning = replace(found, severity="warning")

    root = page_of(report(diagnostics=(warning, *(replace(found, node=str(n)) for n in range(30)))))

    is_open = ["open" in next(each.all("details")).attributes for each in root.all("article")]
    assert [at for at, each in enumerate(is_open) if each] == [1]


def test_one_tree_shows_how_targets_differ():
    def tree(device, *, first="Eager", places=(1, 1)):
        devices = {"cuda:0": places[0], device: places[1]}
        block = module("0-5", 6, [module("a", bytes_per_device={"cuda:0": 1})], bytes_per_device=devices)
        own = module("attention", class_name=first, bytes_per_device={device: 1})
        return module("", children=[own, block, module("same", bytes_per_device={device: 1})])

    one = tree("cuda:0")
    two = replace(tree("cuda:1", first="Flash"), bytes_per_device={"cuda:0": 1, "cuda:1": 1})
    two = replace(two, children=(*two.children, module("extra", bytes_per_device={"cuda:1": 1})))
    one = replace(one, bytes_per_device={"cuda:0": 1})
    root = page_of(report(verdict("H100", modules=one), verdict("2xH100", modules=two)))

    (shown,) = [each for each in root.all("div") if each.attributes.get("class") == "tree"]
    lines = [each for each in shown.all("span") if each.attributes.get("class") == "line"]
    assert {next(line.all("b")).text: [mark.text for mark in line.all("mark")] for line in lines} == {
        "(root)": ["H100: cuda:0", "2xH100: cuda:0..1"],
        "attention": ["H100: Eager", "2xH100: Flash", "2xH100: cuda:1"],
        "0-5": [],
        "a": [],  # Its six modules are on two devices.
        "same": ["2xH100: cuda:1"],
        "extra": ["only on 2xH100"],
    }


def test_bars_of_modules_are_their_part_of_the_bytes():
    root_module = module(children=[module("a", total_bytes=1_000), module("0-2", 3, total_bytes=500)])
    root = page_of(report(verdict(modules=replace(root_module, total_bytes=2_500))))

    labels = [each.attributes["aria-label"] for each in root.all("svg")]
    assert labels == ["100.0% of the bytes", "40.0% of the bytes", "60.0% of the bytes"]
    assert [next(each.all("path")).attributes["d"] for each in root.all("svg")][1] == "M0 1h40.0v8H0Z"


def test_a_verified_fix_is_a_patch_to_copy(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("x = 1\ny = 2\n")
    fix = Fix("Use 3", changes=(Change(edits=(Edit(str(path), 2, 5, 2, 6, "3"),)),), is_verified=True)
    found = replace(names_everywhere("name").diagnostics[0], fix=fix)

    root = page_of(report(diagnostics=(found,)))

    (copied,) = [
        each.attributes["data-copy"] for each in root.all("button") if "data-copy" in each.attributes
    ]
    assert copied.splitlines()[2:] == ["@@ -1,2 +1,2 @@", " x = 1", "-y = 2", "+y = 3"]
    subprocess.run(["git", "apply"], cwd="/", input=copied, text=True, check=True)
    assert path.read_text() == "x = 1\ny = 3\n"


@pytest.mark.parametrize("is_holding", [True, False])
def test_state_column_is_shown_only_if_the_program_has_state(is_holding):
    totals = TensorTotals(1, 1, {"cuda:0": 3 * 2**30})
    state = TensorTotals(1, 1, {"cuda:0": 2**30}) if is_holding else TensorTotals(0, 0, {})
    made = summary(parameters=totals, buffers=TensorTotals(0, 0, {}), state=state)

    root = page_of(report(verdict(summary=made)))

    (row,) = rows(root, "One row per target")
    assert ("2.0 GiB" in row, row[-1] == "1.0 GiB") == (is_holding, is_holding)
    assert ("3.0 GiB" in row) is not is_holding


def test_tables_are_tables_to_a_screen_reader():
    root = page_of(full_report())

    for table in root.all("table"):
        assert next(table.all("caption")).text
        heads = [head.attributes["scope"] for head in next(table.all("thead")).all("th")]
        assert set(heads) == {"col"}
        for row in next(table.all("tbody")).all("tr"):
            cells = [each for each in row.children if not isinstance(each, str)]
            assert cells[0].attributes["scope"] == "row"
            assert len(cells) == len(heads)
    assert next(root.all("html")).attributes["lang"] == "en"
    assert [each.tag for each in next(root.all("body")).all() if each.tag in ("header", "main", "nav")]


@pytest.mark.parametrize("name", HOSTILE, ids=["script", "closing", "quotes", "template", "bidi"])
def test_names_are_never_markup(name):
    text = render_page(check_document(names_everywhere(name)))
    plain = render_page(check_document(names_everywhere("name")))

    root = read_page(text)

    assert_loads_nothing(root)
    assert [each.tag for each in root.all()] == [each.tag for each in read_page(plain).all()]
    assert not set("\u202e\u2066\u200b\x1b\x00") & set(text)
    if name.isprintable():
        assert next(root.all("h1")).text == name


@pytest.mark.parametrize("count", [3, 10_000])
def test_large_page_is_cut_and_counts_omitted_content(count):
    name = "x" * 5_000
    found = [
        replace(names_everywhere("name").diagnostics[0], node=str(n), notes=(name,) * 3)
        for n in range(min(count, 1_000))
    ]
    moved = tuple(transfer(module_path=f"{n}.{name}", index=n) for n in range(count))
    deep = module("root", children=[module(f"{n}{name}") for n in range(min(count, 1_000))])
    big = report(verdict(transfers=moved, modules=deep), diagnostics=tuple(found))

    text = render_page(check_document(big))
    root = read_page(text)

    assert len(text.encode()) <= 1_000_000
    shown = len(rows(root, "Transfers on"))
    lost = [each.text for each in root.all("p") if each.attributes.get("class") == "left-out"]
    assert shown >= min(count, 3)
    if count > shown:
        assert any(f"{count - shown:,} more rows are not on this page" in each for each in lost)
    assert bool(lost) == (count > shown)


def test_a_repository_is_one_page():
    project = ProjectReport((full_report(), report()), {"<b>.py:f": "no such file"})

    root = read_page(render_page(project_document(project)))

    assert_loads_nothing(root)
    assert rows(root, "One row per source")[-1] == ["<b>.py:f", "not checked", "no such file"]
    assert sum(heading.text.endswith(": Verdicts") for heading in root.all("h2")) == 2


def test_a_repository_of_many_models_is_one_small_page():
    project = ProjectReport(tuple(replace(full_report(), source=f"m.py:f{n}") for n in range(300)), {})

    text = render_page(project_document(project))

    assert len(text.encode()) <= 1_000_000
    assert "more sections are not on this page" in text
    read_page(text)


@pytest.mark.parametrize("name", HOSTILE, ids=["script", "closing", "quotes", "template", "bidi"])
def test_a_name_is_text_in_a_plan(name):
    held = [replace(step(n, weight=6), peak=PlannedPeak(name, name, name, name)) for n in range(3)]
    device = sample_device(name="cuda:0", peak=held[0].peak)
    plan = replace(sample_plan(device), subject=name, timeline=tuple(held), assumptions=(name,), target=name)
    modules = (PlannedModule(name, 0, 1, 10, 4, (name,)),)

    text = render_page(plan_document(replace(plan, modules=modules)))

    assert_loads_nothing(read_page(text))
    assert not set("\u202e\u2066\u200b\x1b\x00") & set(text)


def step(number, **sizes):
    return PlannedStep("cuda:0", PlannedPeak(f"n{number}", "aten.mul.Tensor", "layers.3", None), sizes)


def test_a_plan_draws_what_is_held_at_each_node():
    held = [step(n, weight=600, activation=100 * (n % 5), output=n) for n in range(40)]
    plan = replace(sample_plan(sample_device(weights=600, memory=None)), timeline=tuple(held))
    modules = [
        PlannedModule("", 0, 1, 10, 4, ("cuda:0",)),
        PlannedModule("layers.0-5", 1, 6, 9, 3, ("cuda:0",)),
    ]

    text = render_page(plan_document(replace(plan, modules=tuple(modules))))
    root = read_page(text)

    assert_loads_nothing(root)
    svg = ElementTree.fromstring(text[text.index('<svg class="chart"') : text.index("<figcaption>")])
    assert svg.attrib["role"] == "img"
    areas = {path.attrib["class"]: path.attrib["d"] for path in svg.iter("path")}
    assert list(areas) == ["fill-output", "fill-activation", "fill-weight"]
    peak, scale = 600 + 400 + 39, (240 - 24)
    for kinds, name in ((3, "fill-output"), (2, "fill-activation"), (1, "fill-weight")):
        tops = heights_of(areas[name], 40)
        sums = [sum(list(each.bytes_by_kind.values())[:kinds]) for each in held]
        assert [240 - top for top in tops] == pytest.approx([scale * size / peak for size in sums], abs=0.06)
    assert next(svg.iter("text")).text == "peak 1.0 KiB"
    assert "The peak is 1.0 KiB at aten.mul.Tensor in layers.3" in next(root.all("figcaption")).text


def heights_of(path, nodes):
    """The y of an outline at the middle of each node."""
    points = [tuple(map(float, part.split("V"))) for part in path.split("H")[1:] if "Z" not in part]
    middles = [(n + 0.5) * 1000 / nodes for n in range(nodes)]
    return [[y for x, y in points if x <= middle][-1] for middle in middles]


def test_archives_that_differ_are_a_page():
    weights = (WeightDifference("dtype", "float32", "bfloat16", ("a", "b")),)
    facts = (FactDifference("source", "old", "<i>new"),)
    found = ArchiveDifference("a.pt2", "b.pt2", everything_differs(), weights, facts, ("not <checked>",))

    root = read_page(render_page(archive_difference_document(found)))

    assert_loads_nothing(root)
    kinds = {row[1] for row in rows(root, "From a.pt2 to b.pt2")}
    assert {"operators", "removed", "added", "devices", "transfers", "ranges"} <= kinds
    assert rows(root, "Weights that differ") == [["dtype float32 -> bfloat16 in 2 weights: a, b", "dtype"]]
    assert rows(root, "Metadata that differs") == [["source: old -> <i>new", "source"]]
    assert "the archives differ" in next(root.all("header")).text


@pytest.mark.parametrize("value", [full_report(), sample_plan()])
def test_a_notebook_shows_reports_and_plans(value):
    text = value._repr_html_()

    root = read_page(text)

    assert not list(root.all("script"))
    assert not any("id" in each.attributes for each in root.all())
    assert list(root.all("h4"))
    assert len(text) < 200_000
