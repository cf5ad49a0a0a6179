"""Closer looks: who may look when, a window and its verdict in a child of the service, one that stands by."""
