"""What forward passes cost on this machine: measured, kept, or published."""
