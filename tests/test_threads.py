"""Threads that compute: used again, unless what they called failed."""

from threading import Thread, current_thread

import pytest

from akunu_py.machine.threads import start


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_whose_work_failed_takes_no_other() -> None:
    ran = list[Thread]()

    def fail() -> None:
        ran.append(current_thread())
        raise KeyboardInterrupt

    for work in (lambda: ran.append(current_thread()), fail, lambda: ran.append(current_thread())):
        assert start(work).wait(10)
    first, failed, last = ran
    failed.join()  # its error is reported then, and not to another test
    assert first is failed is not last
