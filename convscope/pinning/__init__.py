"""Plans of layers that are written down: exported from an atlas, compared between two stacks."""
