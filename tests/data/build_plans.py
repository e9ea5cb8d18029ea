"""Writes plans/, networks/ and lines/ from the code as it is; read the diff.

``python -m tests.data.build_plans``
"""

from __future__ import annotations

from pathlib import Path

from tests.fakes import plan_rows, platform_plans, topologies, user_lines

if __name__ == "__main__":
    here = Path(__file__).parent
    texts = {**platform_plans.files(), **plan_rows.files()}
    made = {here / "plans" / path: text for path, text in texts.items()}
    made |= {here / "networks" / path: text for path, text in topologies.files().items()}
    made |= {here / "lines" / path: text for path, text in user_lines.files().items()}
    for pattern in ("plans/*/*.txt", "networks/*.txt", "lines/*.txt"):
        for path in {*here.glob(pattern)} - made.keys():
            path.unlink()
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
