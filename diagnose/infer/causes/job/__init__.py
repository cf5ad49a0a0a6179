"""Causes that touch a role, most ranks or all of them."""
