"""Show a failure when it happens: a run that is ended from outside tells of none afterwards."""

import pytest

__all__ = ["FailuresAtOnce"]


class FailuresAtOnce:
    """A plugin for the process that has the terminal. To be registered when that is known."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.write_sep("-", f"{report.when} of {report.nodeid} failed")
            self._terminal.write_line(report.longreprtext)
