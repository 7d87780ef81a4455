"""Before anything is measured: study files with their combinations, and the GPU-hours of runs."""
