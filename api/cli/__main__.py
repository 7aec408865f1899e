"""`python -m api.cli` is `updraft`."""

from __future__ import annotations

from api.cli.root import main

if __name__ == "__main__":
    main()
