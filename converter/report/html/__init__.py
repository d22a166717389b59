"""The report as one HTML file that needs nothing else: no network, no script; light and dark, wide and narrow."""
