"""Compute conditions, reasons and the rest of the status."""
