"""The completion backend: an HTTP server around one engine, which speaks several contracts."""
