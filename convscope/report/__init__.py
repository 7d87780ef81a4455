"""Report of what runs found: one HTML page, figures for a paper, a summary; reads results, measures nothing."""
