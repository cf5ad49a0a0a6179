"""What a process gives up before it reads what others wrote."""
