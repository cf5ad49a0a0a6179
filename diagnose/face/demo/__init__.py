"""A recorded window that is shipped, and what the lines of its verdict mean. See README.md."""
