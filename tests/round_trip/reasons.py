"""Why a round trip ends, or ends elsewhere than eager: what was raised, in words; verified one by one."""

from __future__ import annotations

__all__ = ["DIFFERENT", "UNALIGNED", "reason_of"]

# What stands in the error -> the reason.
_RAISED = (
    ("histogram_cpu", "its experts branch on the device: `histc` of integers has no CPU kernel"),
    ("cannot be solved using", "FE202: its sizes lead to an inequality that sympy cannot solve"),
    ("FE201", "FE201: it branches on values that depend on the data"),
    ("FE203", "FE203: it needs a number that depends on the data"),
    ("FE301", "FE301: it needs a size that depends on the data"),
)

UNALIGNED = (
    "equal with copied weights; in a mapped file, weights are unaligned, and a kernel rounds differently"
)

_ROUNDED = "eager mode drops a mask of ones and its kernel rounds differently; equal if the mask is kept"
_KERNEL = "eager mode uses the math kernel inside `sdpa_kernel()`, which is not exported; equal if it is used"

_NOT_CAUSAL = (
    "eager mode drops a mask of ones, so text attention is not causal; it is with `attn_implementation=eager`"
)
_SUBSTITUTED = (
    "during export, transformers solves the delta rule by substitution and rounds differently; equal if "
    "eager does so"
)

# Architecture -> why its programs differ from eager.
DIFFERENT = {
    "aimv2": _NOT_CAUSAL,
    "colpali": _NOT_CAUSAL,
    "granite_speech": _KERNEL,
    "granite_speech_plus": _KERNEL,
    "inkling_text": _ROUNDED,
    "jev": "the program of stock torch.export rounds alike, and is equal with the weights copied",
    "minicpm_ocr": _SUBSTITUTED,
    "minicpmv4_6": _SUBSTITUTED,
    "minicpmv4_7": _SUBSTITUTED,
    "olmo_hybrid": _SUBSTITUTED,
    "qwen3_5": _SUBSTITUTED,
    "zoedepth": _ROUNDED,
}

# Architecture -> why its checkpoint does not fit its program.
_UNFIT = {
    "oneformer": "FE602: three of its layers are in a Python list, so that no checkpoint has their weights",
    "shieldgemma2": "FE701: transformers writes names to its checkpoint that it does not read back either",
}


def reason_of(name: str, error: str) -> str:
    """The reason in words, or the error as it was raised."""
    if error.startswith("BindError") and name in _UNFIT:
        return _UNFIT[name]
    return next((text for part, text in _RAISED if part in error), error)
