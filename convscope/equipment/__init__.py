"""Equipment of this machine: what can be measured here, and what to do about what cannot."""
