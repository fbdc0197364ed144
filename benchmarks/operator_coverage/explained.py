"""Why an operator is not the same on a virtual device, for those where we know.

What is right so is marked: a real device differs from the CPU there as well.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KNOWN", "Reason", "reason_of"]


@dataclass(frozen=True)
class Reason:
    """One cause.

    Args:
        text: For the reader of the table.
        is_right: A real device differs from the CPU in the same way.
        source: Where that is written.
    """

    text: str
    is_right: bool
    source: str


_SVD = Reason(
    "cuSOLVER returns `V` row-major, the CPU's LAPACK column-major",
    is_right=True,
    source="torch/_meta_registrations.py:linalg_svd, which asks for the device",
)

# Operator, or its name up to a dot -> why.
KNOWN: dict[str, Reason] = {
    "svd": _SVD,
    "linalg.svd": _SVD,
    "svd_lowrank": _SVD,
    "pca_lowrank": _SVD,
    "linalg.svdvals": _SVD,
    "linalg.eig": Reason(
        "the eigenvectors are row-major on CUDA",
        is_right=True,
        source="torch/_meta_registrations.py:linalg_eig, which asks for the device",
    ),
    "nonzero_static": Reason(
        "CUDA's kernel gives a column-major result",
        is_right=True,
        source="torch/_meta_registrations.py:nonzero_static, which asks for the device",
    ),
    "tensor_split": Reason(
        "split points must be on the CPU, and the measurement puts every input on the device",
        is_right=True,
        source="torch/_decomp/decompositions.py:tensor_split, which checks it",
    ),
    "to_sparse": Reason(
        "a sparse fake on CUDA cannot be cloned while it is traced: its kernel is not in a CPU-only wheel",
        is_right=False,
        source="aten::empty.memory_format of SparseCUDA",
    ),
}


def reason_of(operator: str) -> Reason | None:
    """The known reason for an operator of torch's database, variants included, or None."""
    parts = operator.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((KNOWN[name] for name in names if name in KNOWN), None)
