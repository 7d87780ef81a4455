"""Results on disk: paths, tables, schemas, the store of a study, its lock, the environment it ran in."""
