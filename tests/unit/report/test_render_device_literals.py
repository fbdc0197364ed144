"""Where a program names devices, as text."""

from fakexport.diagnostics import Span
from fakexport.program import DeviceListing, DeviceLiteral
from fakexport.program.retargeting.device_listing import Breakage
from fakexport.report import render_device_literals, render_diagnostics
from fakexport.rules import rule


def literal(node, *, device="cpu", kind="creation", is_baked_in=True, line=7):
    return DeviceLiteral(
        node=node,
        operator="aten.arange.default",
        argument="device",
        device=device,
        span=Span("/venv/lib/python3.11/site-packages/models/gpt.py", line),
        module_path="model",
        graph="",
        index=0,
        kind=kind,
        is_baked_in=is_baked_in,
    )


FIRST, SECOND = literal("arange"), literal("arange_1")
MOVE = literal("to", device="cuda:0", kind="move", is_baked_in=False, line=12)
DIAGNOSTIC = rule("FE501").diagnostic(notes=("elsewhere it fails",))


def listing(*literals, breakages=(), diagnostics=()):
    return DeviceListing(literals, ("cpu",), "cuda:0", breakages, diagnostics)


def test_golden():
    breakages = tuple(
        Breakage(left, "embedding", "aten.embedding.default", "it fails") for left in (FIRST, SECOND)
    )

    text = render_device_literals(
        listing(FIRST, SECOND, MOVE, breakages=breakages, diagnostics=(DIAGNOSTIC,))
    )

    assert text == (
        "a program on cpu, and what would fail on cuda:0\n"
        "\n"
        "    2 x  baked in, breaks  creation  aten.arange.default device=cpu     models/gpt.py:7\n"
        "    1 x  intent            move      aten.arange.default device=cuda:0  models/gpt.py:12\n"
        "\n"
        f"{render_diagnostics([DIAGNOSTIC])}"
        "\n"
        "3 device literals, 2 baked in; 1 node would fail on cuda:0\n"
    )


def test_a_program_without_literals_has_a_summary_alone():
    assert render_device_literals(listing()) == (
        "a program on cpu, and what would fail on cuda:0\n"
        "\n"
        "0 device literals, 0 baked in; 0 nodes would fail on cuda:0\n"
    )


def test_what_does_not_print_is_escaped():
    hostile = literal("arange", device="cpu\x1b[2J")

    assert "\x1b" not in render_device_literals(listing(hostile))
