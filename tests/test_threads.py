"""Threads that compute: used again, unless what they called failed."""

from threading import get_ident

import pytest

from akunu_py.machine.threads import start


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_whose_work_failed_takes_no_other() -> None:
    ran = list[int]()

    def fail() -> None:
        ran.append(get_ident())
        raise KeyboardInterrupt

    for work in (lambda: ran.append(get_ident()), fail, lambda: ran.append(get_ident())):
        assert start(work).wait(10)
    first, failed, last = ran
    assert first == failed != last
