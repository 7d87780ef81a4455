"""Parts that all commands share: parser, options, signals, text display."""
