"""Ctrl-C and SIGTERM, handled between training steps."""

import signal
import threading
from typing import Any

from anofpdm.errors import Terminated


class StopRequests:
    """A signal takes effect at the end of the step, so that no half-finished step is saved; a second one at once."""

    def __init__(self) -> None:
        self.requested = False
        self.exception: type[KeyboardInterrupt] = KeyboardInterrupt
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequests":
        if threading.current_thread() is threading.main_thread():
            signals = (signal.SIGINT, signal.SIGTERM)
            self._previous = {number: signal.signal(number, self._handle) for number in signals}
        return self

    def _handle(self, number: int, _frame: object) -> None:
        if number == signal.SIGTERM:
            self.exception = Terminated
        if self.requested:
            raise self.exception
        self.requested = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
