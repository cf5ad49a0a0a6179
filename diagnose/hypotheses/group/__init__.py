"""What hosts have in common that are slow alike. See README.md."""
