"""The command line: its grammar, and one file for each command."""
