"""Windows as objects of a store: a bucket, or a shared folder. See README.md."""
