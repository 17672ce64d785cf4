"""Planning: what a forward costs on this machine, and how long a draft should be."""
