# Written from ../asynchronous by `python -m api.generate`.
"""The client."""
