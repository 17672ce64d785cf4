"""The completion backend: an HTTP server around one engine, speaking several clients' contracts."""
