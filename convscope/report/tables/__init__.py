"""Tables of the report, made from the tables of all folders: passes, layers, other studies, runs, pairs, methods."""
