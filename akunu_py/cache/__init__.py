"""Keys and values: buffers with a length, and which of them serves a request."""
