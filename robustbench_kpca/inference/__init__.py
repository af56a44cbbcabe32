"""How a model is run: at one batch size, on checked inputs, with progress that survives a kill."""
