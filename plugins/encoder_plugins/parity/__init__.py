"""The comparison of a server with the original library."""
