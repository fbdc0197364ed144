"""Where a program names devices, as text."""

from fakexport.exporting.program import DeviceListing, DeviceLiteral
from fakexport.exporting.program.retargeting.device_listing import Breakage
from fakexport.report import render_device_literals
from fakexport.rules import rule
from fakexport.rules.diagnostics import Span


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


def broken(*literals):
    return tuple(Breakage(each, "embedding", "aten.embedding.default", "it fails") for each in literals)


def test_unprintable_characters_are_escaped():
    hostile = literal("arange", device="cpu\x1b[2J")

    assert "\x1b" not in render_device_literals(listing(hostile))
