"""What a window holds, in the formats of tools that others use."""
