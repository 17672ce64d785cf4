"""What forward passes cost on this machine: measured, stored, or published."""
