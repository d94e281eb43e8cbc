"""The HTTP application in front of the engine."""
