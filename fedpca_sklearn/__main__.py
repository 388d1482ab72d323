"""The command line: ``python -m fedpca_sklearn COMMAND``, which is ``fedpca COMMAND``."""

from __future__ import annotations

import sys

from ._console._main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
