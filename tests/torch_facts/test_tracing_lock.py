"""One thread traces at a time, since torch's flags for it are one per process."""

import threading

from torch.fx import _lazy_graph_module

from fakexport._torch.tracing_lock import one_at_a_time


def test_a_flag_of_a_trace_is_one_per_process():
    seen = []

    with _lazy_graph_module._use_lazy_graph_module(True):
        thread = threading.Thread(target=lambda: seen.append(_lazy_graph_module._use_lazy_graph_module_flag))
        thread.start()
        thread.join()

    assert seen == [True]


def test_two_threads_never_run_it_together_and_one_may_call_it_again():
    running, most = [], []

    @one_at_a_time
    def trace(depth):
        running.append(depth)
        most.append(len(running))
        if depth:
            trace(depth - 1)
        running.pop()

    threads = [threading.Thread(target=trace, args=(1,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert max(most) == 2
    assert len(most) == 16
