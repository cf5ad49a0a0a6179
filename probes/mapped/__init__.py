"""The files that targets have mapped."""
