"""What forward does in Python is seen, at its line, and still happens."""

from __future__ import annotations

import builtins
import linecache
import random
import threading
from functools import cached_property
from pathlib import Path
from random import random as drawn_by_name

import numpy as np
import pytest
import torch
from torch import manual_seed, nn

import fakexport as fe
from fakexport.exporting.capture import python_effects
from fakexport.exporting.capture.python_effects import PythonEffect, watch_forward


def effects_of(module: nn.Module) -> list[PythonEffect]:
    with watch_forward(module) as effects:
        module(torch.zeros(2))
    return list(effects)


def line_of(effect: PythonEffect) -> str:
    assert effect.span is not None
    return Path(effect.span.path).read_text().splitlines()[effect.span.line - 1].strip()


class Talking(nn.Module):
    def forward(self, x):
        for _ in range(3):
            print("here", end="")
        return x


def test_a_print_is_one_effect_however_often_it_prints(capsys):
    (effect,) = effects_of(Talking())

    assert (effect.kind, effect.what, line_of(effect)) == ("print", "print", 'print("here", end="")')
    assert capsys.readouterr().out == "herehere" + "here"
    assert effect.span.column == 13


def seeds(x):
    torch.manual_seed(0)
    return torch.rand_like(x)


def seeds_apart(x):
    with torch.random.fork_rng():
        return torch.rand_like(x)


def changes_the_dtype(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    made = torch.rand(2)
    torch.set_default_dtype(before)
    return made


class Setting(nn.Module):
    def __init__(self, made):
        super().__init__()
        self.made = made

    def forward(self, x):
        return x + self.made(x)


@pytest.mark.parametrize(
    ("made", "called"),
    [
        (seeds, ["torch.random.manual_seed"]),
        (seeds_apart, ["torch.random.fork_rng"]),
        (changes_the_dtype, ["torch.set_default_dtype"] * 2),
        (torch.rand_like, []),
        (torch.nn.functional.dropout, []),
    ],
)
def test_setting_a_seed_or_a_default_of_torch_is_an_effect(made, called):
    effects = effects_of(Setting(made))

    assert [(effect.kind, effect.what) for effect in effects] == [("state", each) for each in called]
    assert all(effect.what.rpartition(".")[2] in line_of(effect) for effect in effects)
    assert torch.get_default_dtype() is torch.float32


def seeds_the_generator(x):
    torch.default_generator.manual_seed(1)
    return torch.rand_like(x)


def seeds_by_an_imported_name(x):
    manual_seed(1)
    return torch.rand_like(x)


def restores_the_state(x):
    state = torch.get_rng_state()
    drawn = torch.rand_like(x)
    torch.set_rng_state(state)
    return drawn - torch.rand_like(x)


def restores_the_state_of_the_generator(x):
    state = torch.default_generator.get_state()
    drawn = torch.rand_like(x)
    torch.default_generator.set_state(state)
    return drawn - torch.rand_like(x)


def forks_the_state(x):
    with torch.random.fork_rng(devices=[]):
        drawn = torch.rand_like(x)
    return drawn - torch.rand_like(x)


def restores_the_state_of_devices(x):
    state = torch.cuda.get_rng_state_all()
    drawn = torch.rand_like(x)
    torch.cuda.set_rng_state_all(state)
    return drawn - torch.rand_like(x)


def restores_the_state_of_the_device(x):
    state = torch.get_device_module(x.device).get_rng_state()
    drawn = torch.rand_like(x)
    torch.get_device_module(x.device).set_rng_state(state)
    return drawn - torch.rand_like(x)


def repeats_a_draw_by_chunks(x):
    draw = torch.vmap(lambda row: row + torch.rand(2, device=x.device), randomness="same", chunk_size=1)
    return draw(x.repeat(2, 1))


def asks_for_the_seed(x):
    return x + torch.initial_seed() % 7


def computes_with_the_state(x):
    return x + torch.get_rng_state()[:2].to(x)


SETTING_STATE = {
    seeds_the_generator: "default_generator.manual_seed",
    seeds_by_an_imported_name: "manual_seed(1)",
    restores_the_state: "torch.set_rng_state",
    restores_the_state_of_the_generator: "default_generator.set_state",
    forks_the_state: "fork_rng",
    restores_the_state_of_devices: "set_rng_state_all",
    restores_the_state_of_the_device: ".set_rng_state",
    repeats_a_draw_by_chunks: "draw(x.repeat",
    asks_for_the_seed: "initial_seed",
    computes_with_the_state: "self.made(x)",
}


@pytest.mark.parametrize("target", ["cpu", "H100"])
@pytest.mark.parametrize("made", SETTING_STATE)
def test_a_state_of_a_generator_that_forward_sets_or_reads_is_reported_at_its_line(made, target):
    if "device" in made.__name__ and target == "cpu":
        pytest.skip("the CPU has no module of that kind")

    report = fe.check(lambda: (Setting(made), (torch.zeros(2),)), target=target)

    (found,) = report.diagnostics
    assert found.code == "FE910"
    assert SETTING_STATE[made] in linecache.getline(__file__, found.labels[0].span.line)


def reads_the_state(x):
    state = torch.get_rng_state()
    return torch.rand_like(x) * len(state)


def draws_in_a_branch(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) + torch.rand_like(x)


@pytest.mark.parametrize("drawing", [torch.rand_like, reads_the_state, draws_in_a_branch])
def test_drawing_and_saving_the_state_of_a_generator_are_no_effects(drawing):
    report = fe.check(lambda: (Setting(drawing), (torch.zeros(2),)))

    assert report.diagnostics == ()


class Generating(nn.Module):
    def __init__(self, generator=None):
        super().__init__()
        self.generator = generator

    def forward(self, x):
        generator = self.generator or torch.Generator().manual_seed(3)
        return x + torch.rand(2, generator=generator)


@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_a_generator_is_reported_where_it_is_drawn_from(generator):
    diagnostics = fe.check(lambda: (Generating(generator), (torch.zeros(2),))).diagnostics

    found = next(each for each in diagnostics if each.code == "FE910")
    assert {each.code for each in diagnostics} == {"FE910", "FE406"}
    assert "generator=generator" in linecache.getline(__file__, found.labels[0].span.line)


class Drawing(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x + self.draw()


@pytest.mark.parametrize(
    ("draw", "what"),
    [
        (lambda: random.random(), "random.random"),
        (lambda: random.gauss(0, 1), "random.gauss"),
        (lambda: np.random.rand(), "numpy.random.rand"),
        (lambda: np.random.normal(), "numpy.random.normal"),
    ],
)
def test_a_draw_is_seen_at_its_line(draw, what):
    (effect,) = effects_of(Drawing(draw))

    assert (effect.kind, effect.what) == ("random", what)
    assert what in line_of(effect).replace("np.", "numpy.")


def test_each_watch_sees_the_draws_of_its_own_call_in_its_own_thread():
    def draw_elsewhere():
        other = threading.Thread(target=lambda: random.random())
        other.start()
        other.join()
        return random.gauss(0, 1)

    kept = []

    def draw_and_keep():
        kept.append(random.random)
        return random.random()

    names = [
        [effect.what for effect in effects_of(Drawing(draw)) if effect.kind == "random"]
        for draw in (draw_and_keep, draw_elsewhere, draw_and_keep)
    ]

    assert names == [["random.random"], ["random.gauss"], ["random.random"]]
    assert 0 <= kept[0]() < 1  # Outside of a watch it only draws.


def test_a_draw_through_an_imported_name_is_seen_without_a_place():
    (effect,) = effects_of(Drawing(lambda: drawn_by_name()))

    assert (effect.kind, effect.what, effect.span) == ("random", "random", None)


def test_what_is_first_looked_up_inside_of_another_watch_is_found_afterwards():
    def watched_draw():
        python_effects._watched_places.cache_clear()
        return len(effects_of(Drawing(lambda: random.random())))

    effects_of(Drawing(watched_draw))

    (effect,) = effects_of(Drawing(lambda: random.random()))
    assert (effect.what, effect.span is None) == ("random.random", False)


def test_watching_changes_no_number():
    random.seed(3)
    expected = [random.random(), random.random()]
    random.seed(3)

    with watch_forward(module := Drawing(lambda: random.random())):
        values = [module(torch.zeros(())).item(), module(torch.zeros(())).item()]

    assert values == pytest.approx(expected)


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps, self.history, self.by_name, self.fixed = 0, [], {}, [1, 2]
        self.inner = nn.Module()
        self.inner.last = None
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.steps += 1
        self.history.append(x)
        self.by_name["x"] = x
        self.fixed = [1, 2]
        self.inner.last = self.first
        self.count += 1
        return self.remember(x)

    def remember(self, x):
        self.fresh = x
        return x

    @property
    def first(self):
        self.kept = self.history[0]
        return self.kept


def test_changed_attributes_are_seen_and_buffers_are_none():
    found = {(effect.module_path, effect.what): effect for effect in effects_of(Stateful())}

    own = {("", name) for name in ("steps", "history", "by_name", "fresh", "kept")}
    assert found.keys() == {*own, ("inner", "last")}
    assert line_of(found["", "steps"]) == "self.steps += 1"
    assert line_of(found["", "history"]) == "self.history.append(x)"
    assert line_of(found["", "by_name"]) == 'self.by_name["x"] = x'
    assert line_of(found["", "fresh"]) == "self.fresh = x"
    assert line_of(found["", "kept"]) == "self.kept = self.history[0]"
    assert found["inner", "last"].span is None  # no method of its own class assigns it


class Exchanging(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Counting()

    @cached_property
    def padding(self):
        return 3

    def forward(self, x):
        self.inner = Counting()
        self._own_hooks_installed = True
        return self.inner(x).clone().mul(2) + self.padding


def test_a_module_that_is_exchanged_is_one_effect_and_caches_are_none():
    (effect,) = effects_of(Exchanging())

    assert (effect.module_path, effect.what) == ("", "inner")
    assert line_of(effect) == "self.inner = Counting()"


class ExchangingInList(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Counting(), Counting()])

    @cached_property
    def count(self):
        return 1

    def forward(self, x):
        self.blocks[1] = Counting()
        self.count += 1
        return x * self.count


@pytest.mark.parametrize("is_read_before", [False, True])
def test_a_module_of_a_list_and_a_cached_property_that_is_assigned_are_effects(is_read_before):
    module = ExchangingInList()
    assert not is_read_before or module.count == 1

    assert {(one.module_path, one.what) for one in effects_of(module)} == {("blocks", "1"), ("", "count")}


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        größe, self.steps = x.shape, self.steps + 1  # The name has letters of two bytes.
        return x.view(größe)


@pytest.mark.parametrize(("module", "name"), [(Stateful(), "history"), (Counting(), "steps")])
def test_the_attribute_is_shown_and_not_what_is_assigned(module, name):
    (span,) = (effect.span for effect in effects_of(module) if effect.what == name)

    line = linecache.getline(span.path, span.line)
    assert line[span.column - 1 : span.end_column - 1] == f"self.{name}"
    assert line.index(f"self.{name}") == span.column - 1


@pytest.mark.parametrize("is_own", [False, True])
def test_everything_is_put_back(is_own):
    module = Talking()
    if is_own:
        module.forward = lambda x: x
    before = (builtins.print, random.random, np.random.rand, module.forward, "forward" in vars(module))

    with pytest.raises(RuntimeError, match="stop"), watch_forward(module):
        raise RuntimeError("stop")

    after = (builtins.print, random.random, np.random.rand, module.forward, "forward" in vars(module))
    assert after == before


def test_an_error_of_the_model_passes_through():
    class Failing(nn.Module):
        def forward(self, x):
            print("before")
            raise KeyError("x")

    with watch_forward(module := Failing()) as effects, pytest.raises(KeyError):
        module(torch.zeros(2))

    assert [effect.kind for effect in effects] == ["print"]
    assert type(builtins.print).__name__ == "builtin_function_or_method"


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects:UserWarning")
def test_strict_mode_does_not_run_forward_and_its_effects_are_found():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            return x * self.steps

    report = fe.check(lambda: (Counting(), (torch.zeros(2),)), strict=True)

    assert [each.code for each in report.diagnostics] == ["FE912"]


def test_a_model_that_only_strict_mode_traces_has_a_warning_that_its_effects_are_unknown():
    class OfDynamo(nn.Module):
        def forward(self, x):
            if not torch.compiler.is_dynamo_compiling():
                raise ValueError("only compiled")
            return x + 1

    report = fe.check(lambda: (OfDynamo(), (torch.zeros(2),)), strict=True)

    (found,) = report.diagnostics
    assert (found.code, found.severity) == ("FE903", "warning")
    assert found.notes == (
        "not checked: without strict mode, tracing `forward` raises ValueError: only compiled",
    )


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects:UserWarning")
def test_a_buffer_that_strict_mode_does_not_write_back_is_refused():
    class Assigning(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x):
            self.total = self.total + x
            return self.total * 2

    report = fe.check(lambda: (Assigning(), (torch.zeros(2),)), strict=True)

    assert [each.code for each in report.diagnostics] == ["FE912"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
def test_a_scripted_module_has_attributes_too():
    class Scripted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.jit.script(nn.Linear(2, 2))

        def forward(self, x):
            return self.inner(x)

    assert effects_of(Scripted()) == []
