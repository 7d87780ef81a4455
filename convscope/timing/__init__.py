"""Time on a device: CUDA graphs, traces, summaries, the stopwatch, times of layers."""
