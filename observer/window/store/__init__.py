"""Windows as objects of a store: a bucket, or a folder that hosts share. See README.md."""
