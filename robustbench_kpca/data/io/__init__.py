"""Read and write images and masks in files and folders."""
