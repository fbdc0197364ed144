"""Where fakexport differs from stock `torch.export` on purpose, or not yet; the test checks each entry.

An entry that is no longer true fails: it has to be taken out.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DIFFERENCES", "NOT_FOR_STOCK", "NOT_SAVED", "REPORTED", "Difference"]

DEVICES = ("cuda", "xpu", "mps")
EVERYWHERE = ("cpu", *DEVICES)


@dataclass(frozen=True)
class Difference:
    """A feature that stock exports on the CPU, and fakexport reports.

    Args:
        code: Of the diagnostic.
        devices: The types of device for which it is reported.
        reason: Why.
    """

    code: str
    devices: tuple[str, ...]
    reason: str


_LOST = "stock's program takes the input of the derivative for a constant, and ignores what it is given"
_SPARSE = "sparse tensors need a kernel of the device, and no archive stores them"

DIFFERENCES = {
    "grad": Difference("FE210", EVERYWHERE, _LOST),
    "grad_and_value": Difference("FE210", EVERYWHERE, _LOST),
    "vjp": Difference("FE210", EVERYWHERE, _LOST),
    "jacrev": Difference("FE210", EVERYWHERE, _LOST),
    "data_parallel": Difference(
        "FE202", ("cuda", "xpu"), "it copies the module to every device, in C++ of CUDA"
    ),
    "generator_of_the_device": Difference(
        "FE202", DEVICES, "only the device's own library makes a generator"
    ),
    "sparse_coo_product": Difference("FE202", DEVICES, _SPARSE),
    "sparse_coo_made": Difference("FE202", DEVICES, _SPARSE),
    "sparse_csr_product": Difference("FE202", ("mps",), _SPARSE),
}

# Stock exports none of these either; what fakexport reports, with a fix.
REPORTED = {
    "branch_on_data": "FE201",
    "jacfwd": "FE210",
    "hessian": "FE210",
    "vmap_of_grad": "FE210",
    "functionalize": "FE202",
    "ctc_loss": "FE301",
    "jagged_nested": "FE202",
    "packed_sequence": "FE203",
    "sdpa_causal_bias": "FE202",
}

# Refused when saved, and why.
NOT_SAVED = {
    "generator_of_the_device": "a Generator: only tensors and C",
    "sparse_coo_product": "a tensor of layout sparse_coo cannot be stored",
    "sparse_coo_made": "a tensor of layout sparse_coo cannot be stored",
    "sparse_csr_product": "a tensor of layout sparse_csr cannot be stored",
}

# Saved without weights; with them, for stock torch, it is refused, as stock itself cannot save it.
NOT_FOR_STOCK = dict.fromkeys(
    (
        *("flex_plain", "flex_score_mod", "flex_score_mod_with_a_table", "flex_block_mask"),
        *("flex_block_mask_of_the_module", "flex_grouped", "flex_with_log_sum"),
    ),
    "torch's format cannot store a tuple of Node, NoneType, int",
)

# Stock exports none of these, which ask for values of constants; how, and for what, fakexport does.
# A length from a dynamic size is not a constant, and other devices may round a division differently.
ANSWERED = {
    "branch_on_a_constant": (("static", "dynamic"), EVERYWHERE),
    "length_from_a_buffer": (("static",), ("cpu", "cuda")),
}
