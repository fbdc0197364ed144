"""Temporary memory of a convolution on a CPU, depending on the library that computes it.

oneDNN uses a blocked layout, with 16 channels per block on processors with AVX-512, and 8 with AVX2. It
copies the input and the weight to that layout, and the result back. Small convolutions, and dtypes that
oneDNN does not support on the processor, unfold their input (im2col) instead.

Measured with torch 2.13 in float32 on AVX-512 and AVX2. An unmeasured case is estimated from the nearest
measured one, and `convolution` then also yields None.

Source: `aten/src/ATen/native/Convolution.cpp:use_mkldnn`, `aten/src/ATen/native/mkldnn/Conv.cpp`,
`aten/src/ATen/native/ConvolutionMM2d.cpp`, `aten/src/ATen/native/NaiveConvolutionTranspose2d.cpp`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fakexport._torch.costs.operator_memory import is_computed_by_onednn

BLOCKS: Mapping[str, int] = {"AVX512": 16, "AVX2": 8}
"""Channels per block in oneDNN, by `torch.backends.cpu.get_cpu_capability()`."""

# Smaller single images are computed without oneDNN.
_SMALLEST_ELEMENTS = 20480
_LARGE_BATCH = 16
_ALIGNMENT = 128
_PAGE = 4096
_THREAD = 24
# Bytes that a grouped convolution unfolds at once per thread, with an L2 cache of 512 KiB.
_UNFOLDED = 414720


def convolution(args: Sequence[Any], result: torch.Tensor) -> Iterator[Any]:
    """Yield the temporary bytes of one `aten.convolution` call, followed by None if they are an estimate."""
    tensor, weight, bias, stride, padding, dilation, is_transposed, _, groups = args
    capability = torch.backends.cpu.get_cpu_capability()
    call = _Call(
        *(tensor, weight, bias is not None, tuple(stride), tuple(padding), tuple(dilation), groups, result),
        block=BLOCKS.get(capability, BLOCKS["AVX2"]),
    )
    by_onednn = is_computed_by_onednn(tensor.dtype)
    is_float = tensor.dtype is torch.float32
    if by_onednn is False or (is_float and not call.is_onednn):
        yield call.unfolded_transposed() if is_transposed else call.unfolded()
        return
    yield call.transposed() if is_transposed else call.in_blocks()
    is_usual = capability == "AVX2" and call.is_usual if is_transposed else not call.is_split
    if not (is_float and capability in BLOCKS and is_usual):
        yield None


@dataclass(frozen=True)
class _Call:
    tensor: torch.Tensor
    weight: torch.Tensor
    has_bias: bool
    stride: tuple[Any, ...]
    padding: tuple[Any, ...]
    dilation: tuple[Any, ...]
    groups: int
    result: torch.Tensor
    block: int

    @property
    def kernel(self) -> Sequence[Any]:
        return self.weight.shape[2:]

    @property
    def is_pointwise(self) -> bool:
        return all(length == 1 for length in self.kernel)

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.tensor.shape[1] == self.result.shape[1] == self.groups

    @property
    def is_onednn(self) -> bool:
        """Whether oneDNN computes the convolution in float32."""
        *_, height, width = (1, *self.kernel)
        is_plain = all(length == 1 for length in (height, width, *self.stride, *self.dilation))
        if is_plain and self.tensor.shape[0] < _LARGE_BATCH and torch.get_num_threads() == 1:
            return False
        rows = self.tensor.shape if len(self.kernel) == 1 else self.tensor.shape[:4]
        is_large = bool(self.tensor.shape[0] > 1) or bool(math.prod(rows) > _SMALLEST_ELEMENTS)
        return self.groups > 1 or (height > 3 and width > 3) or is_large

    @property
    def is_split(self) -> bool:
        """Whether each group is unfolded separately because its channels do not fill whole blocks."""
        if self.groups == 1 or (self.is_channels_last and self.block == BLOCKS["AVX2"]):
            return False
        if self.is_depthwise:
            return len(self.kernel) == 3
        return any(int(size) % self.block for size in self._channels_of_a_group())

    @property
    def is_usual(self) -> bool:
        """Whether a transposed convolution is one of the measured cases.

        These have one group, or one group per channel. They have either no stride, or a result that is larger
        than all other tensors together and not in channels-last format.
        """
        if self.groups > 1:
            return self.is_depthwise and (
                len(self.kernel) == 2 or (len(self.kernel) == 1 and not self.has_stride)
            )
        is_small = bool(_bytes(self.tensor) + self._kernel() < _bytes(self.result))
        return not self.has_stride or (is_small and len(self.kernel) > 1 and not self.is_channels_last)

    @property
    def has_stride(self) -> bool:
        return any(step != 1 for step in self.stride)

    @property
    def is_channels_last(self) -> bool:
        if self.tensor.is_contiguous():
            return False
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        memory_format = formats.get(self.tensor.dim())
        return memory_format is not None and self.tensor.is_contiguous(memory_format=memory_format)

    def _channels_of_a_group(self) -> tuple[Any, Any]:
        return self.tensor.shape[1] // self.groups, self.result.shape[1] // self.groups

    def in_blocks(self) -> Any:
        """Return the peak of the temporary bytes, without the result.

        The peak occurs either before the result is allocated, when input, weight and result exist in the
        blocked layout, or while the result is copied back from that layout.
        """
        if self.is_channels_last:
            return self._channels_last()
        own = 0 if self.tensor.is_contiguous() else _bytes(self.tensor)
        if self.is_split:
            inputs, _ = self._channels_of_a_group()
            pixels = math.prod(self.result.shape[2:][-2:])
            unfolded = torch.sym_min(
                inputs * math.prod(self.kernel) * pixels * self.tensor.itemsize, _UNFOLDED
            )
            return own + torch.sym_max(torch.get_num_threads() * unfolded, _bytes(self.result))
        is_blocked = self.is_depthwise or self.tensor.shape[1] >= self.block
        source = self._blocked(self.tensor) if is_blocked else 0
        target = self._blocked(self.result)
        before = own + self._picked() + self._padded_bias() + source + self._kernel() + target
        return torch.sym_max(before - _bytes(self.result), own + target)

    def transposed(self) -> Any:
        """Return the peak of the temporary bytes of a transposed convolution, without the result.

        Kernels with a stride use the channels-last format, and other kernels use the blocked layout. Some
        kernels copy the result to add the bias.
        """
        is_ragged = any(self.padding) or any(
            length % step for length, step in zip(self.kernel, self.stride, strict=True)
        )
        added = _bytes(self.result) + _ALIGNMENT if self.has_bias else 0
        if self.is_channels_last:
            is_copied = self.is_depthwise or (self.has_stride and is_ragged)
            return self._channels_last() + (added if is_copied else 0)
        if self.groups == 1 and self.has_stride:
            scratch = torch.get_num_threads() * (14 if is_ragged else 9) * _PAGE + (added if is_ragged else 0)
            return torch.sym_max(2 * _bytes(self.result), scratch + _bytes(self.tensor) + self._kernel())
        if self.is_split:
            _, outputs = self._channels_of_a_group()
            columns = (
                outputs
                * math.prod(self.kernel)
                * math.prod(self.tensor.shape[2:][-2:])
                * self.tensor.itemsize
            )
            return torch.sym_max(added + torch.get_num_threads() * columns, _bytes(self.result))
        target = self._blocked(self.result)
        added = target + _ALIGNMENT if self.has_bias else 0
        before = added + self._blocked(self.tensor) + self._kernel(is_transposed=True) + target
        return torch.sym_max(before - _bytes(self.result), target)

    def unfolded(self) -> Any:
        """Return the bytes of the unfolded input (im2col). Dilated kernels unfold one image at a time."""
        is_volume = len(self.kernel) == 3
        is_dilated = any(step != 1 for step in self.dilation)
        is_plain = self.is_pointwise and not (self.has_stride or is_dilated or any(self.padding))
        own = (
            0
            if self.tensor.is_contiguous() or (self.is_channels_last and not is_volume)
            else _bytes(self.tensor)
        )
        images = 1 if is_dilated else self.tensor.shape[0]
        groups = self.groups if is_volume and not is_dilated else 1
        inputs = self.tensor.shape[1] // self.groups * groups
        columns = inputs * math.prod(self.kernel) * math.prod(self.result.shape[2:]) * images
        taken = own + (0 if is_plain and groups == 1 else columns * self.tensor.itemsize)
        if self.is_channels_last and not (
            is_volume or self.weight.is_contiguous(memory_format=torch.channels_last)
        ):
            taken += _bytes(self.weight)
        return taken if groups == self.groups else self._one_after_the_other(taken)

    def unfolded_transposed(self) -> Any:
        """Return the bytes of the columns that a transposed convolution folds into its result."""
        is_volume = len(self.kernel) == 3
        images = 1 if is_volume else self.tensor.shape[0]
        outputs = self.result.shape[1] // self.groups
        taken = outputs * math.prod(self.kernel) * math.prod(self.tensor.shape[2:]) * images
        if is_volume and self.has_bias:
            taken += math.prod(self.result.shape[2:])
        taken *= self.tensor.itemsize
        if is_volume:  # The result is computed in a buffer of the input's size.
            taken += torch.sym_max(0, _bytes(self.tensor) - _bytes(self.result)) // self.groups
        return taken if self.groups == 1 else self._one_after_the_other(taken)

    def _one_after_the_other(self, taken: Any) -> Any:
        """Return the peak over all groups: while computing the last one, or while concatenating results."""
        copied = torch.sym_min(1, self.tensor.shape[0] - 1) * _bytes(self.tensor) // self.groups
        return torch.sym_max(_bytes(self.result), copied + taken)

    def _channels_last(self) -> Any:
        """Return the bytes of the channels-last weight, its copy in the blocked layout, and scratch pages.

        Each oneDNN thread has scratch pages, and has more of them if an image is as wide as the kernel.
        """
        last = torch.channels_last if self.tensor.dim() == 4 else torch.channels_last_3d
        own = 0 if self.weight.is_contiguous(memory_format=last) else _bytes(self.weight)
        outputs, inputs = self.weight.shape[:2]
        size = inputs * math.prod(self.kernel) * self.weight.itemsize
        if self.is_depthwise:
            return own + self._up(outputs) * size
        channels = self.groups * self._up(outputs // self.groups)
        threads, pages, width = torch.get_num_threads(), 0, self.kernel[-1]
        if width > 1 and self.stride[-1] == width and self.block == BLOCKS["AVX512"]:
            is_wider = torch.sym_min(1, torch.sym_max(0, self.tensor.shape[-1] - width))
            pages = (2 + threads * (1 + self.weight.itemsize)) * (1 - is_wider)
        has_scratch = self.groups == 1 or self.block == BLOCKS["AVX2"]
        scratch = _PAGE * (1 + threads + pages) + _THREAD * threads if has_scratch else 0
        return own + scratch + channels * size

    def _kernel(self, *, is_transposed: bool = False) -> Any:
        inputs, outputs = self.tensor.shape[1], self.result.shape[1]
        size = math.prod(self.kernel) * self.weight.itemsize
        if self.is_depthwise:
            return self._up(outputs) * size
        if self.groups > 1:
            return _bytes(self.weight)
        return (
            size * self._up(outputs) * (self._up(inputs) if inputs >= self.block or is_transposed else inputs)
        )

    def _padded_bias(self) -> Any:
        outputs = self.result.shape[1]
        is_padded = self.has_bias and outputs % self.block
        return self._up(outputs) * self.weight.itemsize + _ALIGNMENT if is_padded else 0

    def _picked(self) -> Any:
        """Return the bytes of the pixels that threads copy for a strided convolution with a 1x1 kernel."""
        strides = zip(self.tensor.shape[2:], self.result.shape[2:], self.stride, strict=True)
        is_whole = all(size == length * step for size, length, step in strides)
        if not (self.is_pointwise and self.has_stride and is_whole) or len(self.kernel) == 3:
            return 0
        picked = self._up(self.tensor.shape[1]) * math.prod(self.result.shape[2:]) * self.result.itemsize
        return picked * torch.get_num_threads() + _ALIGNMENT

    def _blocked(self, tensor: torch.Tensor) -> Any:
        return tensor.numel() // tensor.shape[1] * self._up(tensor.shape[1]) * tensor.itemsize

    def _up(self, channels: Any) -> Any:
        return (channels + self.block - 1) // self.block * self.block


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.numel() * tensor.itemsize
