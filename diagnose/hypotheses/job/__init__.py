"""What touches roles, most ranks or all of them."""
