"""The data sets, one file each, or a row of `data/shifted_imagenet.py`: `load(request)` returns a `Dataset`.

`load` raises a BadInputError for a split that the set does not have; for a folder that is missing, not this set or
damaged, or given to a set that takes none; and for sizes that are unknown or cannot be kept.
"""
