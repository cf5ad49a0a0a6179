"""A package that is started by `python -m aside3.recsys.train`."""
