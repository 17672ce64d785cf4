"""The decoding loop, its forwards, and verification."""
