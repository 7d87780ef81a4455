"""Report of what runs found: one HTML page, figures for a paper, a summary in Markdown; reads results, measures nothing."""
