"""Ctrl-C and a polite kill, heard between steps."""

import signal
import threading
from typing import Any

from anofpdm.errors import Terminated


class StopRequests:
    """A request waits for the step to end, so that no half step is ever saved. Asked twice, it stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self.how: type[KeyboardInterrupt] = KeyboardInterrupt
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequests":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _hear(self, number: int, _frame: object) -> None:
        if number == signal.SIGTERM:
            self.how = Terminated
        if self.asked:
            raise self.how
        self.asked = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
