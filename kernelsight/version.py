"""The version of the program: what packages, results and measured rows name."""

VERSION = "0.1.0"
