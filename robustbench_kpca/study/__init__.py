"""The papers' claims measured and their tables made again. The benchmark does not import it."""
