"""Kinds of dtypes that torch's kernels refuse, by operator.

Derived in torch 2.13: on the CPU by calls of every operator of torch's own test database (`op_db`) with every
dtype, of which those are here that eager torch refuses and fake mode accepts; on CUDA from what the database
says of the kernels (`dtypesIfCUDA`), as no GPU was at hand. An operator that the database describes wrongly
is left out: it denies `cumsum` of bool, which runs. In half precision, what the CPU refuses is here, and
taken to be refused on CUDA too where the database says so: without a GPU, it denies bfloat16 too often.

Source: `torch/testing/_internal/common_methods_invocations.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

_ANYWHERE = {
    "C": """
        amax.default amin.default aminmax.default argsort.default argsort.stable atan2.default
        clamp.default clamp.Tensor clamp_max.default clamp_max.Tensor clamp_min.default
        clamp_min.Tensor convolution.default copysign.Tensor cosine_embedding_loss.default
        digamma.default elu.default
        erf.default erfc.default erfinv.default fmax.default fmin.default ge.Scalar ge.Tensor
        group_norm.default gt.Scalar gt.Tensor hardtanh.default heaviside.default
        hinge_embedding_loss.default i0.default instance_norm.default le.Scalar le.Tensor
        leaky_relu.default lgamma.default logit.default lt.Scalar lt.Tensor
        margin_ranking_loss.default max.default max.dim max.other maximum.default min.default
        min.dim min.other minimum.default msort.default relu6.default remainder.Scalar
        scaled_dot_product_attention.default selu.default sign.default signbit.default
        softshrink.default sort.default sort.stable special_entr.default special_erfcx.default
        special_log_ndtr.default special_ndtr.default special_ndtri.default special_xlog1py.default
        special_zeta.default xlogy.Tensor
    """,
    "IB": """
        adaptive_avg_pool2d.default adaptive_avg_pool3d.default lerp.Scalar lerp.Tensor linalg_lu.default
        linalg_lu_factor.default linalg_solve_triangular.default logcumsumexp.default
        rand_like.default silu.default std.correction std.default std.dim uniform.default
        var.correction var.default var.dim
    """,
    "IC": """
        batch_norm.default binary_cross_entropy.default binary_cross_entropy_with_logits.default
        cross_entropy_loss.default frac.default log_sigmoid.default nll_loss_nd.default
    """,
    "IBC": """
        adaptive_max_pool1d.default adaptive_max_pool2d.default
        adaptive_max_pool3d.default celu.default gelu.default glu.default grid_sampler.default
        hardshrink.default hardsigmoid.default hardswish.default hypot.default igamma.default
        igammac.default log_softmax.int max_pool1d.default max_unpool2d.default max_unpool3d.default
        mish.default multi_margin_loss.default multilabel_margin_loss.default multinomial.default
        nextafter.default prelu.default round.decimals rrelu.default softmax.int softplus.default
        upsample_linear1d.vec upsample_trilinear3d.vec
    """,
    "BC": """
        argmax.default argmin.default avg_pool1d.default avg_pool2d.default avg_pool3d.default
        ceil.default div.Tensor_mode floor.default fmod.Tensor max_pool1d_with_indices.default
        max_pool2d.default max_pool2d_with_indices.default max_pool3d.default
        max_pool3d_with_indices.default median.default median.dim nanmedian.default relu.default
        remainder.Tensor round.default threshold.default topk.default trunc.default
        upsample_bicubic2d.vec upsample_bilinear2d.vec upsample_nearest1d.vec upsample_nearest2d.vec
    """,
    "B": """
        addbmm.default addcmul.default addmm.default addmv.default baddbmm.default bmm.default
        conv1d.default conv1d.padding conv2d.default conv3d.default conv3d.padding
        conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input cross.default
        dot.default linalg_cross.default linear.default matmul.default mm.default mv.default
        pow.Tensor_Tensor vdot.default
    """,
    "CF": "bitwise_and.Tensor bitwise_not.default bitwise_or.Tensor bitwise_xor.Tensor lcm.default",
    "BCF": "bitwise_left_shift.Tensor bitwise_right_shift.Tensor gcd.default",
    "I": "im2col.default logaddexp.default logaddexp2.default",
}
# Products and pools of integers: cuBLAS, cuDNN and torch's own CUDA kernels have none.
_ON_CUDA = {
    "I": """
        addbmm.default addmm.default addmv.default avg_pool1d.default avg_pool2d.default
        avg_pool3d.default baddbmm.default bmm.default conv1d.default conv1d.padding conv2d.default
        conv2d.padding conv3d.default conv3d.padding conv_transpose1d.default conv_transpose2d.input
        conv_transpose3d.input dot.default linear.default matmul.default max_pool2d.default
        max_pool3d.default mm.default mv.default upsample_bicubic2d.vec upsample_bilinear2d.vec
        vdot.default
    """,
}
_ON_CPU = {
    "B": "abs.default trace.default",
    "C": "nanmean.default nansum.default",
    "IBC": "bernoulli.default",
}

# H: bfloat16 and float16; b: bfloat16.
_HALVES_ANYWHERE = {
    "H": """
        _lu_with_info.default cholesky.default cholesky_inverse.default cholesky_solve.default
        linalg_cholesky.default linalg_cholesky_ex.default linalg_cond.default linalg_det.default
        linalg_eig.default linalg_eigh.default linalg_eigvals.default linalg_eigvalsh.default
        linalg_householder_product.default linalg_ldl_factor.default
        linalg_ldl_factor_ex.default linalg_ldl_solve.default linalg_lu.default
        linalg_lu_factor.default linalg_lu_factor_ex.default linalg_lu_solve.default
        linalg_qr.default linalg_solve.default linalg_solve_ex.default
        linalg_solve_triangular.default linalg_svd.default linalg_svdvals.default
        linalg_tensorsolve.default lu_solve.default ormqr.default pdist.default polar.default
        qr.default special_airy_ai.default special_bessel_j0.default special_bessel_j1.default
        special_bessel_y0.default special_bessel_y1.default
        special_chebyshev_polynomial_t.default special_chebyshev_polynomial_u.default
        special_chebyshev_polynomial_v.default special_chebyshev_polynomial_w.default
        special_erfcx.default special_hermite_polynomial_h.default
        special_hermite_polynomial_he.default special_laguerre_polynomial_l.default
        special_legendre_polynomial_p.default special_log_ndtr.default
        special_modified_bessel_i0.default special_modified_bessel_i1.default
        special_modified_bessel_k0.default special_modified_bessel_k1.default
        special_ndtri.default special_scaled_modified_bessel_k0.default
        special_scaled_modified_bessel_k1.default special_shifted_chebyshev_polynomial_t.default
        special_shifted_chebyshev_polynomial_u.default
        special_shifted_chebyshev_polynomial_v.default
        special_shifted_chebyshev_polynomial_w.default special_spherical_bessel_j0.default
        special_zeta.default svd.default triangular_solve.default
    """,
    "b": "complex.default stft.center",
}
_HALVES_ON_CPU = {
    "H": """
        _upsample_bicubic2d_aa.vec _upsample_bilinear2d_aa.vec avg_pool3d.default
        multi_margin_loss.default multilabel_margin_loss.default stft.center
    """,
}
_HALVES = {torch.bfloat16: "Hb", torch.float16: "H"}


def kind_of(dtype: torch.dtype) -> str:
    """Return `C` for complex, `F` for floating-point, `B` for bool, `I` for integer dtypes."""
    if dtype is torch.bool:
        return "B"
    return "C" if dtype.is_complex else "F" if dtype.is_floating_point else "I"


def is_refused(dtype: torch.dtype, kinds: str) -> bool:
    """Return whether a dtype is of one of some kinds, as `refused_kinds` returns them."""
    return not set(kind_of(dtype) + _HALVES.get(dtype, "")).isdisjoint(kinds)


def refused_kinds(operator: str, device_type: str) -> str:
    """Return the kinds that an operator refuses on a type of device: letters of `kind_of`, `H` for bfloat16
    and float16, `b` for bfloat16.

    Args:
        operator: `aten.gelu.default`.
        device_type: For types other than "cpu" and "cuda", only what both refuse is known.
    """
    name = operator.removeprefix("aten.")
    tables = (*_AT_BOTH, *{"cpu": _AT_CPU, "cuda": _AT_CUDA}.get(device_type, ()))
    return "".join(table.get(name, "") for table in tables)


def _by_name(groups: Mapping[str, str]) -> dict[str, str]:
    return {name: kinds for kinds, names in groups.items() for name in names.split()}


_AT_BOTH = (_by_name(_ANYWHERE), _by_name(_HALVES_ANYWHERE))
_AT_CPU = (_by_name(_ON_CPU), _by_name(_HALVES_ON_CPU))
_AT_CUDA = (_by_name(_ON_CUDA),)
