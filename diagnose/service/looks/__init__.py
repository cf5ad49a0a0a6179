"""Looks of the service: when one may begin, its window and verdict in a child process, and one that is prepared."""
