"""Says so where PyPI's `supervisor` (supervisord) was installed into the same folder: both break.

Whichever is installed later replaces the `__init__.py` and `process.py` of the other. So it is not
the package's own `__init__.py` alone that imports this module, but all that programs begin with.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent
_THEIRS = [name for name in ("supervisord.py", "supervisorctl.py") if (_FOLDER / name).exists()]

if _THEIRS:
    raise ImportError(
        f"{_FOLDER} also holds {' and '.join(_THEIRS)} of PyPI's 'supervisor'"
        " (supervisord): it and 'celery-beat-supervisor' cannot share an environment."
        " Uninstall both, then install only 'celery-beat-supervisor'."
    )
if not (_FOLDER / "__init__.py").exists():
    raise ImportError(
        f"{_FOLDER} lacks files, as after `pip uninstall supervisor` (supervisord):"
        " `pip install --force-reinstall --no-deps celery-beat-supervisor` brings them back."
    )
