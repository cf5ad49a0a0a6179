"""The verdict, schema rankscope.verdict/1."""
