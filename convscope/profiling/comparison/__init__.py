"""Runs of the same work side by side: `convscope compare`, the judgement on two times, a run beside earlier ones."""
