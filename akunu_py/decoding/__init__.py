"""The decoding loop, its forward passes, and verification."""
