"""Planning: what a forward pass costs on this machine, and how long a draft should be."""
