"""Published data sets: samples of several runs merged, split, described and written to one folder."""
