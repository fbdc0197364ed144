"""What a convolution takes for itself on a CPU, with which library it is computed.

oneDNN reads and writes blocks of 16 channels on processors with AVX-512: it makes such a copy of the input,
of the weight and of the result, and the result is copied back. Small convolutions unfold their input instead.

Source: `aten/src/ATen/native/Convolution.cpp:use_mkldnn`, `aten/src/ATen/native/mkldnn/Conv.cpp`,
`aten/src/ATen/native/ConvolutionMM2d.cpp`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

_BLOCK = 16
# Smaller single images are computed without oneDNN.
_SMALLEST_ELEMENTS = 20480
_LARGE_BATCH = 16
_PADDING = 128
_PAGE = 4096
_THREAD = 24


def convolution(args: Sequence[Any], result: torch.Tensor) -> Iterator[Any]:
    """Yield the bytes of what one call of `aten.convolution` takes while its result is there."""
    tensor, weight, _, stride, _, dilation, is_transposed, _, groups = args
    size = result.numel() * result.itemsize
    if is_transposed:
        # In blocks, and once more for the bias.
        yield 2 * size
    elif _uses_blocks(tensor, weight, stride, dilation, groups):
        yield _in_blocks(tensor, weight, result, stride, groups)
    elif any(length != 1 for length in weight.shape[2:]):
        yield math.prod(weight.shape[1:]) * math.prod(result.shape[2:]) * result.shape[0] * result.itemsize


def _uses_blocks(
    tensor: torch.Tensor, weight: torch.Tensor, stride: Sequence[Any], dilation: Sequence[Any], groups: int
) -> bool:
    kernel = weight.shape[2:]
    is_plain = all(length == 1 for length in (*kernel, *stride, *dilation))
    if is_plain and tensor.shape[0] < _LARGE_BATCH and torch.get_num_threads() == 1:
        return False
    is_wide = len(kernel) > 1 and all(length > 3 for length in kernel)
    is_large = bool(tensor.shape[0] > 1) or bool(tensor.numel() > _SMALLEST_ELEMENTS)
    return groups > 1 or is_wide or is_large or len(kernel) == 3


def _in_blocks(
    tensor: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, stride: Sequence[Any], groups: int
) -> Any:
    """Return the most bytes besides the result: input, weight and result in blocks before the result itself
    is taken, or the result in blocks while it is copied back.
    """
    is_dense = tensor.is_contiguous()
    if not is_dense and tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return _channels_last(tensor, weight, stride, groups)
    own = 0 if is_dense else tensor.numel() * tensor.itemsize
    source = _blocked(tensor, 1) if tensor.shape[1] >= _BLOCK else 0
    kernel = weight.numel() // weight.shape[0] * _up(weight.shape[0]) * weight.itemsize
    if groups == 1 and tensor.shape[1] >= _BLOCK:
        kernel = kernel // weight.shape[1] * _up(weight.shape[1])
    target = _blocked(result, 1)
    before = own + _picked(tensor, weight, result, stride) + source + kernel + target
    return torch.sym_max(before - result.numel() * result.itemsize, own + target)


def _channels_last(tensor: torch.Tensor, weight: torch.Tensor, stride: Sequence[Any], groups: int) -> Any:
    """Return the bytes of the weight with the channels last, and once more in blocks, and of what oneDNN
    computes in: pages for each thread, more of them where an image is as wide as the kernel.
    """
    own = 0 if weight.is_contiguous(memory_format=torch.channels_last) else weight.numel() * weight.itemsize
    outputs, inputs, height, width = weight.shape
    if groups > 1:
        is_depthwise = inputs == 1 and outputs == groups
        channels = _up(outputs) if is_depthwise else groups * _up(outputs // groups) * _up(inputs)
        return own + channels * height * width * weight.itemsize
    threads, pages = torch.get_num_threads(), 0
    if width > 1 and stride[-1] == width:
        is_wider = torch.sym_min(1, torch.sym_max(0, tensor.shape[3] - width))
        pages = (2 + threads * (1 + weight.itemsize)) * (1 - is_wider)
    scratch = _PAGE * (1 + threads + pages) + _THREAD * threads
    return own + scratch + _up(outputs) * inputs * height * width * weight.itemsize


def _picked(tensor: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, stride: Sequence[Any]) -> Any:
    """Return the bytes of the pixels that a convolution of single pixels picks, per thread."""
    if any(length != 1 for length in weight.shape[2:]) or all(step == 1 for step in stride):
        return 0
    picked = _up(tensor.shape[1]) * math.prod(result.shape[2:]) * result.itemsize
    return picked * torch.get_num_threads() + _PADDING


def _blocked(tensor: torch.Tensor, dim: int) -> Any:
    return tensor.numel() // tensor.shape[dim] * _up(tensor.shape[dim]) * tensor.itemsize


def _up(channels: Any) -> Any:
    return (channels + _BLOCK - 1) // _BLOCK * _BLOCK
