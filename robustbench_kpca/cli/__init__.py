"""The command line `rbk`: one file per command, which parses options, calls the package and prints results."""
