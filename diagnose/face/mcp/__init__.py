"""The server for agents: `rankscope mcp`. See README.md."""
