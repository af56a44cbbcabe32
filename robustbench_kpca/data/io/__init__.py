"""Images and masks in files and folders."""
