"""While a model is traced, the text of a number is its symbol, and that of a tensor has no values."""

from __future__ import annotations

import re

import torch

from fakexport._torch.unknown_texts import texts_watched


class Texts(torch.nn.Module):
    def forward(self, x):
        found = x.argmax().item()
        self.texts = [
            str(found),
            f"{x.sum().item()}",
            repr(found > 1),
            f"{x.shape}",
            "%s" % (x.shape[0],),  # noqa: UP031 # Not as an f-string does.
            str(x),
            f"{x}",
        ]
        return x


def test_texts_are_symbols_and_each_is_told_with_who_asks():
    told = []
    sizes = {"x": {0: torch.export.Dim.AUTO}}

    with texts_watched(lambda text, frame: told.append((text, frame.f_code.co_name))):
        torch.export.export(module := Texts(), (torch.ones(3, 2),), dynamic_shapes=sizes)

    forms = (
        r"u\d+",
        r"zuf\d+",
        r"u\d+ > 1",
        r"torch\.Size\(\[s\d+, 2\]\)",
        r"s\d+",
        r".*\(\.\.\.",
        r".*\(\.\.\.",
    )
    assert all(re.match(form, text) for form, text in zip(forms, module.texts, strict=True))
    own = [text for text, function in told if function == "forward"]
    assert [text for text in module.texts if "Size" not in text] == [own[i] for i in (0, 1, 2, 4, 5, 6)]
