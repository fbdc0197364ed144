"""What a mask selects has the geometry of eager mode, and only the values of the mask are computed."""

import pytest
import torch

from fakexport.emulation.fake import fake_mode
from fakexport.emulation.history.recording import recording

MASK = [[True, False, True], [False, False, True]]


@pytest.mark.parametrize(
    "select",
    [
        lambda x, mask: x[mask],
        lambda x, mask: x.transpose(2, 3)[mask],
        lambda x, mask: x.permute(3, 2, 0, 1)[:, :, mask],
        lambda x, mask: x[:, :, torch.tensor([0, 3])][mask],
        lambda x, mask: x[mask.to(torch.uint8).bool()],
        lambda x, mask: x[:, torch.tensor([True, False, True])],
        lambda x, mask: x[torch.tensor([1, 0]), torch.tensor([True, False, True])],
        lambda x, mask: x.masked_select(mask[..., None, None]),
        lambda x, mask: x[0, 0, 0].masked_select(mask[0, :, None]),
        lambda x, mask: x.transpose(0, 1).masked_select(mask.t()[..., None, None]),
        lambda x, mask: x[mask & False],
        lambda x, mask: x[:0].masked_select(mask[:0, :, None, None]),
        lambda x, mask: x.masked_select(torch.tensor(True)),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_mask_selects_has_the_geometry_of_eager_mode(select, device):
    def run():
        return select(torch.arange(120.0).view(2, 3, 4, 5), torch.tensor(MASK))

    expected = run()

    with fake_mode(topology="H100") as mode, torch.device(device), recording(mode):
        found = run()
        geometry = (found.shape, found.stride(), found.dtype, found.device.type)
        values = found.tolist()

    assert geometry == (expected.shape, expected.stride(), expected.dtype, device)
    assert values == expected.tolist()


def test_the_tensor_that_a_mask_selects_from_is_not_computed():
    with fake_mode(topology="H100") as mode, torch.device("cuda"), recording(mode):
        x = torch.rand(2, 4, 8, 64, dtype=torch.bfloat16)
        # A GPU has kernels for it that a CPU lacks.
        seen = torch.nn.functional.scaled_dot_product_attention(x, x, x)[:, 0]
        huge = torch.empty(2, 8, 2**40)

        assert seen[torch.ones(2, 8, dtype=torch.bool)].shape == (16, 64)
        assert huge[torch.arange(16).view(2, 8) > 3].shape == (12, 2**40)
        assert huge.masked_select(torch.ones(8, 1, dtype=torch.bool)).shape == (2**44,)
