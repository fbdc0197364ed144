"""What `watched_calls` relies on: every public way to do something calls one of a few private functions."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fakexport._torch.patching import set_in_class
from fakexport._torch.tracing.watched_calls import (
    backend_choices_watched,
    default_generators_watched,
    texts_watched,
    traced_modules,
)


def enters(context):
    with context:
        pass


CHOICES = {
    "sdpa_kernel": lambda: enters(sdpa_kernel(SDPBackend.MATH)),
    "enable_flash_sdp": lambda: torch.backends.cuda.enable_flash_sdp(torch.backends.cuda.flash_sdp_enabled()),
    "set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision(
        torch.get_float32_matmul_precision()
    ),
    "__setattr__": lambda: setattr(
        torch.backends.cuda.matmul, "allow_tf32", torch.backends.cuda.matmul.allow_tf32
    ),
    "flags": lambda: enters(torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_of_kernels_is_told_with_the_frame_of_torch_that_makes_it(name):
    told = []

    with backend_choices_watched(told.append):
        CHOICES[name]()

    callers = []
    for frame in told:
        while frame is not None and frame.f_globals["__name__"].partition(".")[0] in ("torch", "contextlib"):
            callers.append(frame.f_code.co_name)
            frame = frame.f_back
    assert name in callers


STATE = torch.get_rng_state()
CHANGES = [
    ("manual_seed", lambda: torch.manual_seed(3)),
    ("manual_seed", lambda: torch.default_generator.manual_seed(3)),
    ("set_state", lambda: torch.set_rng_state(STATE)),
    ("set_state", lambda: torch.default_generator.set_state(STATE)),
    ("set_state", lambda: enters(torch.random.fork_rng(devices=[]))),
    ("seed", torch.seed),
    ("initial_seed", torch.initial_seed),
]
NO_CHANGES = [
    (None, torch.get_rng_state),
    (None, lambda: torch.rand(2)),
    (None, lambda: torch.Generator().manual_seed(3)),
    (None, lambda: torch.default_generator.clone_state()),
]


@pytest.mark.parametrize(("method", "call"), CHANGES + NO_CHANGES)
def test_a_change_of_the_default_generator_alone_is_told_with_its_method(method, call):
    told, callers = [], []

    def seen(name, frame):
        told.append(name)
        while frame is not None:
            callers.append(frame.f_code.co_filename)
            frame = frame.f_back

    with torch.random.fork_rng(devices=[]), default_generators_watched(seen):
        call()

    assert told == ([] if method is None else [method])
    assert method is None or __file__ in callers


def test_a_class_of_c_is_as_it_was_afterwards():
    before = dict(vars(torch.Generator))

    with default_generators_watched(lambda *seen: None):
        drawn = torch.rand(2, generator=torch.Generator().manual_seed(5))
    set_in_class(torch.Generator, "of_a_test", 3)
    assert torch.Generator().of_a_test == 3
    set_in_class(torch.Generator, "of_a_test", None)

    assert dict(vars(torch.Generator)) == before
    assert torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(5)))


class Texts(nn.Module):
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

    forms = [r"u\d+", r"zuf\d+", r"u\d+ > 1", r"torch\.Size\(\[s\d+, 2\]\)", r"s\d+", *[r".*\(\.\.\."] * 2]
    assert all(re.match(form, text) for form, text in zip(forms, module.texts, strict=True))
    own = [text for text, function in told if function == "forward"]
    assert [text for text in module.texts if "Size" not in text] == [own[i] for i in (0, 1, 2, 4, 5, 6)]


class Shared(nn.Module):
    """One layer under two names, which torch traces through a stand-in of the module."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = self.first

    def forward(self, x):
        return self.second(self.first(x).relu())


@pytest.mark.parametrize(
    ("model", "paths"),
    [(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), ["0", "1"]), (Shared(), ["first", "first"])],
    ids=["plain", "shared"],
)
def test_each_submodule_is_announced_and_stack_traces_are_the_same(model, paths):
    def exported():
        nodes = torch.export.export(model, (torch.ones(3, 2),)).graph.nodes
        return [
            (str(node), node.meta.get("stack_trace"), len(node.meta.get("nn_module_stack", ())))
            for node in nodes
        ]

    started, seen, expected = [], [], exported()
    with traced_modules(started.append, seen.append):
        assert exported() == expected

    assert [id(module) for module in started[-len(paths) :]] == [id(module) for module in seen[:-2]]
    # Last come the model and the module in which torch puts it.
    assert [id(module) for module in seen[:-2]] == [id(model.get_submodule(path)) for path in paths]
