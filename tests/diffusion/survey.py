"""What becomes of every model class of diffusers in its default configuration."""

from __future__ import annotations

import inspect
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import fakexport as fe
from fakexport.devices import emulate
from fakexport.error import first_line
from fakexport.fake import build
from fakexport.history import recording
from fakexport.sources import SourceError, resolve

TARGETS = ("cpu", "H100")
MOST_SECONDS = 150


@dataclass(frozen=True)
class Row:
    """One program of a class.

    Args:
        name: The class, with the half of an autoencoder.
        inputs: Names of the derived inputs; empty if they cannot be derived.
        runs: Whether the model runs with them on fake tensors.
        verdicts: `exports`, or codes, for each of `TARGETS`.
        reason: Why the first of these failed; empty if all succeeded.
    """

    name: str
    inputs: tuple[str, ...] = ()
    runs: bool = False
    verdicts: tuple[str, ...] = ()
    reason: str = ""


def programs() -> list[str]:
    """Return every model class that diffusers exports, an autoencoder as two halves."""
    import diffusers
    from diffusers.models.modeling_utils import ModelMixin

    names = []
    for name in sorted(dir(diffusers)):
        found = getattr(diffusers, name, None)
        if inspect.isclass(found) and issubclass(found, ModelMixin) and found is not ModelMixin:
            has_both = hasattr(found, "encode") and hasattr(found, "decode")
            names += [f"{name}/encoder", f"{name}/decoder"] if has_both else [name]
    return names


def tried(name: str) -> Row:
    """Return what became of one of `programs`."""
    signal.alarm(MOST_SECONDS)
    row = Row(name)
    try:
        row = _inputs(row)
        return _checked(row) if row.runs else row
    except Exception as error:
        return Row(name, row.inputs, row.runs, row.verdicts, first_line(error))
    finally:
        signal.alarm(0)


def _inputs(row: Row) -> Row:
    source = resolve(f"diffusers:{row.name}")
    with emulate("cpu") as devices:
        try:
            built = build(source.factory, device_map=devices.default_device)
        except Exception as error:
            return Row(row.name, reason=f"its default config does not build: {first_line(error)}")
        with built.mode, recording(built.mode), torch.no_grad():
            try:
                inputs = source.example_inputs(built.module, devices.default_device, None)
            except SourceError as error:
                return Row(row.name, reason=str(error))
            try:
                built.module(**inputs.kwargs)
            except Exception as error:
                return Row(row.name, tuple(inputs.kwargs), reason=f"eager mode fails: {first_line(error)}")
    return Row(row.name, tuple(inputs.kwargs), runs=True)


def _checked(row: Row) -> Row:
    report = fe.check(f"diffusers:{row.name}", target=list(TARGETS))
    errors = [each for each in report.diagnostics if each.severity == "error"]
    codes = ", ".join(dict.fromkeys(each.code for each in errors))
    verdicts = tuple("exports" if each.is_exportable else codes for each in report.verdicts)
    reason = f"{errors[0].code}: {errors[0].message}; {errors[0].notes[0]}" if errors else ""
    return Row(row.name, row.inputs, True, verdicts, reason)


def survey(names: Sequence[str], *, processes: int) -> Iterator[Row]:
    """Yield a row for each program, each tried in a process of its own."""
    signal.signal(signal.SIGALRM, _give_up)
    torch.set_num_threads(1)
    context: Any = multiprocessing.get_context("fork")
    with context.Pool(processes, maxtasksperchild=1) as pool:
        yield from pool.imap(tried, names)


def _give_up(number: int, frame: object) -> None:
    raise TimeoutError(f"not finished after {MOST_SECONDS} s")
