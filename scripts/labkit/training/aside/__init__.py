"""Programs that are kept aside, with the modules of the folder above on their path."""
