"""A pytest plugin, `-p tests.gpu.instant`: what fails is told at once, and how long each test took.

On a machine that may be taken away, what pytest tells at the end is never told.
"""

from typing import Any

SLOW_S = 5.0


class Instant:
    def __init__(self, config: Any) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: Any) -> None:
        terminal = self._config.pluginmanager.getplugin("terminalreporter")
        if terminal is None:
            return
        if report.failed:
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.1f} s)")
            terminal.write_line(report.longreprtext)
        elif report.when == "call" and report.duration > SLOW_S:
            terminal.write_line(f"\n{report.duration:.1f} s {report.nodeid}")


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(Instant(config), "instant")
