"""``python -m psiphi`` is ``psiphi``."""

from psiphi.cli import main

if __name__ == "__main__":
    main()
