"""Plans of layers that are written down: exported from an atlas, compared, denied, pinned in a model."""
