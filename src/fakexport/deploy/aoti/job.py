"""Compile one program to a package, for one device."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from torch.export import ExportedProgram

from fakexport._torch.operators.inductor import AotiPackage
from fakexport.emulation.devices import profile_named
from fakexport.exporting.program import (
    facts_of,
    library_classes,
    library_modules,
    library_operators,
    names_by_tensor,
    plain_name,
)

from ..artifact import Report, WeightsPlace
from ..signature import Signature
from .gpu_compilation import compiled_for
from .graph import compiled_files
from .host import device_type, instructions_for, instructions_here, versions_here
from .metadata import PackageMetadata, TensorDescription
from .package import CONSTANTS, KERNELS, PROGRAM, cache_key, constants_record, known_constants, write_package
from .stand_ins import held_tensors, weightless_archive, with_own_weights, with_stand_ins


@dataclass(frozen=True)
class Job:
    """The program to compile, and the options of the compilation."""

    program: ExportedProgram
    signature: Signature
    orders: tuple[tuple[int, ...], ...]
    place: WeightsPlace
    compiler: str
    gpu: str | None  # Profile of the NVIDIA GPU to compile for in a separate process.
    is_timed: bool
    report: Report

    @property
    def device(self) -> str:
        """`cpu` or `cuda`."""
        return device_type(self.program)

    @functools.cached_property
    def archive(self) -> bytes:
        """The weight-less archive of the program."""
        return weightless_archive(self.program)

    @property
    def key(self) -> str:
        """Hash of everything that determines the package."""
        self.report("checking the cache")
        facts = {
            "compiler": self.compiler,
            "gpu": self.gpu and repr(profile_named(self.gpu)),  # A user's own profile may change.
            "is_timed": self.is_timed,
            "instructions": self.instructions,
            "machine": platform.machine(),
            "place": self.place,
            "versions": self.versions,
        }
        values = held_tensors(self.program) if self.place == "inside" else {}
        return cache_key(self.archive, values, facts)

    @property
    def instructions(self) -> tuple[str, ...]:
        return instructions_here(self.device) if self.gpu is None else instructions_for(self.gpu)

    @property
    def versions(self) -> Mapping[str, str]:
        return versions_here() if self.gpu is None else {**versions_here(), "triton": version("triton")}

    def compiled(self, folder: Path) -> Path:
        """Compile into the folder and return the package."""
        is_inside = self.place == "inside"
        more = {} if is_inside else {PROGRAM: self.archive}
        names: Collection[str] = ()
        if self.gpu is not None:
            how = "timing kernels" if self.is_timed else "without using it"
            self.report(f"compiling for {self.gpu}, {how}, with {self.compiler}")
            found = compiled_for(self.gpu, self.archive, folder / "gpu", is_timed=self.is_timed)
            files, names = found.files, found.constants
            more[KERNELS] = json.dumps([asdict(kernel) for kernel in found.kernels], indent=1).encode()
        else:
            self.report(f"compiling for the {'CPU' if self.device == 'cpu' else 'GPU'} with {self.compiler}")
            prepared = with_own_weights(self.program) if is_inside else with_stand_ins(self.program)
            files = compiled_files(prepared, folder / "code", has_weights=is_inside)
            names = () if is_inside else _constant_names(files, folder / "names.pt2")
        constants = known_constants(self.program, names)
        if constants:
            more[CONSTANTS] = constants_record(constants)
        program_id = "" if is_inside else hashlib.sha256(self.archive).hexdigest()
        metadata = self._metadata([name for name in names if name not in constants], program_id)
        package = folder / "package.pt2"
        write_package(package, files, metadata, more)
        return package

    def _metadata(self, names: Collection[str], program_id: str) -> PackageMetadata:
        held = held_tensors(self.program)
        tied = {name: names for names in names_by_tensor(held) for name in names}
        tensors = tuple(
            TensorDescription(
                name,
                plain_name(held[name].dtype),
                tuple(held[name].shape),
                aliases=tuple(other for other in tied[name] if other != name),
            )
            for name in names
        )
        read = {name for tensor in tensors for name in (tensor.name, *tensor.aliases)}
        operators = library_operators(self.program)
        return PackageMetadata(
            signature=self.signature,
            orders=self.orders,
            device=self.device,
            place=self.place,
            tensors=tensors,
            program_id=program_id,
            unread=() if self.place == "inside" else tuple(sorted(held.keys() - read)),
            versions=self.versions,
            machine=platform.machine(),
            instructions=self.instructions,
            libraries_for=(*operators, *library_classes(self.program)),
            library_modules=library_modules(operators),
            sizes=facts_of(self.program).sizes,
        )


def _constant_names(files: tuple[Path, ...], path: Path) -> tuple[str, ...]:
    """Return the names of the weights and constants that must be bound to the compiled code."""
    write_package(path, files)
    return AotiPackage(path).constant_names
