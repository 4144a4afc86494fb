"""Show a failure when it happens: a run that is ended from outside tells of none afterwards."""

import pytest

__all__ = ["tell_failures_at_once"]


def tell_failures_at_once(config: pytest.Config) -> None:
    """Begin to. For a ``pytest_configure`` that comes last, since there is no terminal before."""
    if not hasattr(config, "workerinput"):  # the processes of a shared run have none
        config.pluginmanager.register(
            _FailuresAtOnce(config.pluginmanager.get_plugin("terminalreporter"))
        )


class _FailuresAtOnce:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.write_sep("-", f"{report.when} of {report.nodeid} failed")
            self._terminal.write_line(report.longreprtext)
