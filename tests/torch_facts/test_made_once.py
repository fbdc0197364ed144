"""Objects whose address C++ keeps are made once, also by threads that ask at the same time."""

from __future__ import annotations

import functools
import threading
import time

from fakexport._torch.method_table import made_once


def made_by_threads(decorate):
    made, got, start = [], [], threading.Barrier(8)

    @decorate
    def make(name):
        made.append(name)
        time.sleep(0.01)
        return object()

    def ask():
        start.wait()
        got.append(make("cuda"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made, set(map(id, got))


def test_every_thread_gets_the_one_object():
    made, got = made_by_threads(made_once)

    assert made == ["cuda"]
    assert len(got) == 1


def test_a_cache_of_functools_makes_several_and_frees_all_but_one():
    made, _ = made_by_threads(functools.cache)

    assert len(made) > 1
