"""The session of pages and traces, for what they show over time."""

from tests.present.conftest import saved as saved
