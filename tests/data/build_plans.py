"""Writes plans/PLATFORM/MPI.txt and plans/cases from the code as it is; read the diff.

``python -m tests.data.build_plans``
"""

from __future__ import annotations

from pathlib import Path

from tests.fakes import plan_rows, platform_plans

if __name__ == "__main__":
    folder = Path(__file__).with_name("plans")
    texts = {**platform_plans.files(), **plan_rows.files()}
    made = {folder / path: text for path, text in texts.items()}
    for path in {*folder.glob("*/*.txt")} - made.keys():
        path.unlink()
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
