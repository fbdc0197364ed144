"""Known reasons why an operator behaves differently on an emulated device.

`is_right` marks differences that a real device also has.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KNOWN", "Reason", "reason_of"]


@dataclass(frozen=True)
class Reason:
    """A reason for a difference.

    Args:
        text: The reason, as shown in the table.
        is_right: Whether a real device differs from the CPU in the same way.
        source: Source of the reason, such as a file of torch.
        shows_as: Text that occurs in each problem with this reason. Other problems are unexplained.
    """

    text: str
    is_right: bool
    source: str
    shows_as: str


_SVD = Reason(
    "cuSOLVER returns `V` row-major, the CPU's LAPACK column-major",
    is_right=True,
    source="torch/_meta_registrations.py:linalg_svd, which asks for the device",
    shows_as="stride",
)

_STATISTICS = Reason(
    "CUDA keeps the statistics of half-precision inputs in float32, and keeps them in evaluation too",
    is_right=True,
    source="torch/_decomp/decompositions.py and torch/_refs, which ask for the device",
    shows_as="expected",
)

_CUFFT = Reason(
    "cuFFT transforms the dimensions in steps and leaves them in the order of the last one",
    is_right=True,
    source="torch/_meta_registrations.py:meta_fft_r2c and meta_fft_c2c, which ask for the device",
    shows_as="stride",
)

# Name of an operator, or its part before a dot -> reason.
KNOWN: dict[str, Reason] = {
    "svd": _SVD,
    "linalg.svd": _SVD,
    "svd_lowrank": _SVD,
    "pca_lowrank": _SVD,
    "linalg.svdvals": _SVD,
    "fft.hfft2": _CUFFT,
    "fft.hfftn": _CUFFT,
    "fft.rfft2": _CUFFT,
    "fft.rfftn": _CUFFT,
    "linalg.eig": Reason(
        "the eigenvectors are row-major on CUDA",
        is_right=True,
        source="torch/_meta_registrations.py:linalg_eig, which asks for the device",
        shows_as="stride",
    ),
    "nonzero_static": Reason(
        "CUDA's kernel returns a column-major result",
        is_right=True,
        source="torch/_meta_registrations.py:nonzero_static, which asks for the device",
        shows_as="stride",
    ),
    "native_layer_norm": _STATISTICS,
    "native_batch_norm": _STATISTICS,
    "_native_batch_norm_legit": _STATISTICS,
    "_batch_norm_with_update": _STATISTICS,
    "nn.functional.interpolate": Reason(
        "CUDA's kernel is contiguous where there are few channels",
        is_right=True,
        source="torch/_decomp/decompositions.py:upsample_bilinear2d and others, which ask for the device",
        shows_as="stride",
    ),
    "nn.functional.scaled_dot_product_attention": Reason(
        "the device's fused kernel lays its output out as [batch, sequence, head, feature]",
        is_right=True,
        source="torch/_meta_registrations.py:meta__scaled_dot_product_efficient_attention",
        shows_as="stride",
    ),
    "tensor_split": Reason(
        "split points must be on the CPU, and the measurement puts every input on the device",
        is_right=True,
        source="torch/_decomp/decompositions.py:tensor_split, which checks it",
        shows_as="must be on CPU",
    ),
    "to_sparse": Reason(
        "a sparse fake on CUDA cannot be detached while it is traced: torch allocates on the real device",
        is_right=False,
        source="aten/src/ATen/SparseTensorImpl.cpp:SparseTensorImpl",
        shows_as="a sparse COO tensor on",
    ),
}


def reason_of(operator: str, problem: str) -> Reason | None:
    """Return the known reason for a problem of an operator or of its variants, or None."""
    parts = operator.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    reason = next((KNOWN[name] for name in names if name in KNOWN), None)
    return reason if reason is not None and reason.shows_as in problem else None
