"""The version of the program, as stated in packages, results and measured rows."""

VERSION = "0.2.0"
