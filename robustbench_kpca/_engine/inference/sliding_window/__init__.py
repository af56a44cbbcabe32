"""Sliding-window inference: segment images of any size through windows of one size."""
