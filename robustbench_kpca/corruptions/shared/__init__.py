"""Parts of corruptions that other packages import."""
