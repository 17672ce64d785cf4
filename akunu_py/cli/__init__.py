"""The command line: a grammar, and one file a command."""
