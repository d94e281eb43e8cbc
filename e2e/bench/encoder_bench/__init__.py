"""Comparisons of what we serve with the original libraries and with other servers: tables of ratios, each from one run."""
