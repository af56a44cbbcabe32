"""Stand-in."""


def rows_of(sample, space):
    raise NotImplementedError


def worse_of(found, before):
    raise NotImplementedError
