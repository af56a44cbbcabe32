"""What every room stands on: errors, files, locks, registries, progress. Private to the package."""
