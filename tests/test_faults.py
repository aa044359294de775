"""The faults of ``benches/mutation.py``: each can still be put into the sources, and none is there twice."""

from __future__ import annotations

from benches import mutation


def test_every_fault_fits_the_sources_and_is_there_once() -> None:
    faults = mutation.read_faults(mutation.FAULTS)
    misfits = {fault.fault: mutation.misfit_of(place, faults) for place, fault in enumerate(faults)}
    assert {fault: why for fault, why in misfits.items() if why} == {}
