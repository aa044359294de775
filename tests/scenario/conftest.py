"""The session and the command of the sweep's tests, here too."""

from tests.sweeps.conftest import command, session

__all__ = ["command", "session"]
