"""Engines under load: MLPerf's LoadGen, the batcher that answers it, images in host memory, the search of rates."""
