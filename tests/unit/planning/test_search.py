"""The search for the largest context, with programs that no model is known to have."""

from types import SimpleNamespace

import pytest

from fakexport.planning import search
from fakexport.planning.memory import SizeRequest
from fakexport.report import Greatest


def test_programs_that_find_the_context_of_each_other_are_an_error(monkeypatch):
    """Each program says that the other's context is the largest: the search must not go on forever."""

    def program(request):
        return SimpleNamespace(
            context=request.context,
            sizes=SimpleNamespace(is_dynamic=lambda role: True),
            totals_at=lambda asked: SimpleNamespace(devices=object()),
        )

    def greatest(program, role, request):
        size = 200 if program.context == 100 else 100
        return Greatest(role, size, size, "memory", None)

    monkeypatch.setattr(search, "greatest", greatest)
    programs = SimpleNamespace(program=program, is_derived=True)

    with pytest.raises(ValueError, match=r"--max context: the memory near \d+ tokens"):
        search.greatest_of_source(programs, "context", SizeRequest(context=100))
