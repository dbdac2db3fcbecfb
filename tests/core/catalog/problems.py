"""What is wrong with schedule files, as they are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.catalog.schedule_files import load
from supervisor.errors import Problem, ScheduleFilesInvalid


def problems_of(path: Path, **options: Any) -> list[Problem]:
    with pytest.raises(ScheduleFilesInvalid) as invalid:
        load(path, **options)
    return list(invalid.value.problems)
