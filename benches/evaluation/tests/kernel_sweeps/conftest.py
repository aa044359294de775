"""Imports of research sweeps are run as those of other sweeps."""

from tests.fitting.kernel_sweeps.conftest import import_from  # noqa: F401
