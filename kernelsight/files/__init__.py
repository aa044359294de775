"""Everything that reads bytes which other people wrote: bounded readers, and what is redacted."""
