"""The data sets, one file each: `load(request)` returns a `Dataset`. `imagenet-a` is in `imagenet_a.py`."""
