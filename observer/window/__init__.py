"""Window files: schema, reading and writing."""
