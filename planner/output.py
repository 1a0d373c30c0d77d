"""Writing files whole or not at all."""

import os
import tempfile
from pathlib import Path

from planner.errors import InputError


def write_whole(path: Path, text: str, *, overwrite: bool) -> None:
    """Write text to a file that appears complete; an existing one stays unless overwrite.

    raises: InputError where the file exists or cannot be written
    """
    temporary: str | None = None
    try:
        check_free(path, overwrite=overwrite)
        path = path.resolve()  # through a symbolic link, not in its place
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".planner.", suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
        temporary = None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be written: {reason}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def check_free(path: Path, *, overwrite: bool) -> None:
    """Refuse a path at which something stands that must stay.

    raises: InputError where it is no regular file, or a file and overwrite is false
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a regular file")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: exists already; --force overwrites it")
