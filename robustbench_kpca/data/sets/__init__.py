"""The data sets, one file each: `load(request)` returns a `Dataset`. The file of `imagenet-a` is `imagenet_a.py`."""
