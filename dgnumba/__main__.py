"""``python -m dgnumba`` is ``dgnumba``."""

from .cli import main

if __name__ == "__main__":
    main()
