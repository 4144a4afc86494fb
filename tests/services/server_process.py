"""One process of a server, as the tests treat it: ended by pid, frozen, thawed."""

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

__all__ = ["ServerProcess"]


class ServerProcess:
    """What the servers of the tests have in common. Whoever starts one sets ``_process``."""

    _end_timeout_s = 120.0

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    def send(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it in order; one that does not run is left alone."""
        if self._process is not None:
            # A frozen process would never see the request to end.
            self._process.send_signal(signal.SIGCONT)
            self._end(how)

    def freeze(self) -> None:
        """Stop the process as it stands: connections stay open, nothing is answered."""
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(self._end_timeout_s)
        self._process = None
