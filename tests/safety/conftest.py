"""Commands run in this process, as in the tests of the command line."""

from tests.cli.conftest import command, refusal, saved_run, saved_steps, tiny_config  # noqa: F401 - fixtures of this folder's tests
