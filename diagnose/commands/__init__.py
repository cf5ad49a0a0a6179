"""One file per command of the command line; each holds the function that cli.py registers."""
