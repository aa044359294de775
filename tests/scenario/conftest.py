"""The command of the sweep's tests, here too."""

from tests.sweeps.conftest import command

__all__ = ["command"]
