"""A stack of its own for each context, closed in any order."""

import contextvars
import threading

from fakexport._torch.context_stack import ContextStack

STACK = ContextStack("test")


def test_entries_may_be_closed_in_any_order():
    first, second = STACK.push(1), STACK.push(2)

    STACK.close(first)
    assert STACK.top(0) == 2
    STACK.close(second)
    assert STACK.top(0) == 0


def test_a_copied_context_has_the_entries_and_another_thread_has_none():
    seen = []
    entry = STACK.push(1)

    for run in (contextvars.copy_context().run, lambda f: f()):
        thread = threading.Thread(target=run, args=(lambda: seen.append(STACK.top(0)),))
        thread.start()
        thread.join()
    STACK.close(entry)

    assert seen == [1, 0]


def test_an_entry_that_another_thread_closes_is_closed_here():
    entry = STACK.push(1)

    thread = threading.Thread(target=STACK.close, args=(entry,))
    thread.start()
    thread.join()

    assert STACK.top(0) == 0
